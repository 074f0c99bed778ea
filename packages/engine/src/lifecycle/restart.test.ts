import type { SandboxId } from "@holdfast/contract";
import { describe, expect, it } from "vitest";
import { codeOf, eventually, remove, signal, world } from "./testing/world.ts";

async function boxed(numbers: Parameters<typeof world>[0] = {}) {
  const made = await world(numbers);
  const { sandbox } = await made.create("one");
  const id = sandbox.id as SandboxId;
  const instance = () => {
    const there = made.driver.instances.get(id);
    if (there === undefined) throw new Error("there is no instance");
    return there;
  };
  const status = async () => (await made.engine.sandboxes.get(id)).status;
  const fail = async () => {
    instance().die();
    await eventually(async () => expect(await status()).toBe("failed"));
  };
  return { ...made, id, instance, status, fail };
}

const text = async (body: AsyncIterable<Uint8Array>): Promise<string> => {
  const parts: Uint8Array[] = [];
  for await (const part of body) parts.push(part);
  return Buffer.concat(parts).toString();
};

describe("a restart by order", () => {
  it("ends the instance that runs and starts another on the same files; its commands are lost", async () => {
    const { engine, driver, instance } = await boxed();
    instance().files.set("/kept", Buffer.from("here"));
    await engine.execs.start("one", { id: "a", argv: ["sleep"] }, { signal });
    expect(await engine.sandboxes.restart("one", signal)).toMatchObject({ status: "ready", generation: 2 });
    expect(await engine.execs.wait("a", { waitMs: 5_000, signal })).toMatchObject({
      status: "lost",
      cause: { code: "restart_ordered" },
    });
    expect(instance().files.has("/kept")).toBe(true);
    expect(driver.launches).toBe(2);
  });

  it("is the way back for one that failed, under its own name and with its files", async () => {
    const { engine, id, instance, fail } = await boxed();
    instance().files.set("/kept", Buffer.from("here"));
    await fail();
    const back = await engine.sandboxes.restart("one", signal);
    expect(back).toMatchObject({ id, name: "one", status: "ready", endedAt: null, keptUntil: null });
    expect(instance().files.has("/kept")).toBe(true);
    expect((await engine.stats()).totals).toMatchObject({ created: 1, failed: 1, terminated: 0 });
  });

  it("does not count as breaking by itself", async () => {
    const { engine } = await boxed({ restartsMax: 1 });
    for (let time = 0; time < 3; time += 1) await engine.sandboxes.restart("one", signal);
    expect((await engine.sandboxes.get("one")).generation).toBe(4);
  });

  it("takes a place like a new one, and is refused where there is none", async () => {
    const { engine, create, fail } = await boxed({ maxSandboxes: 1 });
    await fail();
    await create("two");
    expect(await codeOf(engine.sandboxes.restart("one", signal))).toBe("too_many_sandboxes");
    await remove(engine, "two");
    expect((await engine.sandboxes.restart("one", signal)).status).toBe("ready");
  });

  it("of two at once for one place lets one through", async () => {
    const { engine, driver, create } = await world({ maxSandboxes: 2 });
    for (const name of ["one", "two"]) await create(name);
    for (const instance of driver.instances.values()) instance.die();
    await eventually(async () => expect((await engine.stats()).sandboxes.failed).toBe(2));
    await create("three");
    const codes = await Promise.all(
      ["one", "two"].map((name) => codeOf(engine.sandboxes.restart(name, signal))),
    );
    expect(codes.toSorted()).toEqual(["fulfilled", "too_many_sandboxes"]);
  });

  it("is refused for one that never was ready, one that is gone, and one that sleeps", async () => {
    const { engine, driver, id } = await boxed();
    await engine.sandboxes.standby("one", signal);
    expect(await codeOf(engine.sandboxes.restart("one", signal))).toBe("wrong_state");
    await remove(engine, "one");
    expect(await codeOf(engine.sandboxes.restart(id, signal))).toBe("sandbox_gone");
    driver.faults.launch = () => Promise.reject(new Error("no"));
    await codeOf(engine.sandboxes.create({ name: "never" }, { wait: true, signal }));
    const { items } = await engine.sandboxes.list({ limit: 10, status: ["failed"] });
    expect(await codeOf(engine.sandboxes.restart(items[0]?.id ?? "", signal))).toBe("wrong_state");
  });

  it("that a delete overtakes leaves nothing", async () => {
    const { engine, driver } = await boxed();
    const launching = Promise.withResolvers<void>();
    driver.faults.launch = (_order, aborted) =>
      new Promise((_, reject) => {
        launching.resolve();
        aborted.addEventListener("abort", () => reject(aborted.reason));
      });
    const restarted = codeOf(engine.sandboxes.restart("one", signal));
    await launching.promise;
    expect((await remove(engine, "one")).status).toBe("terminated");
    expect(await restarted).toBe("wrong_state");
    expect(driver.instances.size + driver.directories.size).toBe(0);
  });
});

describe("files of a sandbox that failed", () => {
  it("can be read from its disk; what needs it alive is refused as failed", async () => {
    const { engine, instance, fail } = await boxed();
    instance().files.set("/kept", Buffer.from("here"));
    await fail();
    await eventually(async () => expect((await engine.sandboxes.get("one")).lease.state).toBe("none"));
    const { body } = await engine.files.read("one", "/kept", { offset: 0, length: null, wake: true }, signal);
    expect(await text(body)).toBe("here");
    const exec = engine.execs.start("one", { id: "b", argv: ["true"] }, { signal });
    expect(await codeOf(exec)).toBe("sandbox_failed");
  });
});
