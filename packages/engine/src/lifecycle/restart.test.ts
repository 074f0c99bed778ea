import type { SandboxId } from "@holdfast/contract";
import { describe, expect, it } from "vitest";
import { codeOf, eventually, remove, signal, testEngine } from "../testing/test-engine.ts";

async function boxed(numbers: Parameters<typeof testEngine>[0] = {}) {
  const made = await testEngine(numbers);
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

describe("a requested restart", () => {
  it("replaces the running instance by a new one on the same files, and its commands are lost", async () => {
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

  it("returns a failed sandbox to service with its name and files", async () => {
    const { engine, id, instance, fail } = await boxed();
    instance().files.set("/kept", Buffer.from("here"));
    await fail();
    const back = await engine.sandboxes.restart("one", signal);
    expect(back).toMatchObject({ id, name: "one", status: "ready", endedAt: null, keptUntil: null });
    expect(instance().files.has("/kept")).toBe(true);
    expect((await engine.stats()).totals).toMatchObject({ created: 1, failed: 1, terminated: 0 });
  });

  it("does not count against the limit of automatic restarts", async () => {
    const { engine } = await boxed({ restartsMax: 1 });
    for (let time = 0; time < 3; time += 1) await engine.sandboxes.restart("one", signal);
    expect((await engine.sandboxes.get("one")).generation).toBe(4);
  });

  it("counts against the sandbox limit like a create", async () => {
    const { engine, create, fail } = await boxed({ maxSandboxes: 1 });
    await fail();
    await create("two");
    expect(await codeOf(engine.sandboxes.restart("one", signal))).toBe("too_many_sandboxes");
    await remove(engine, "two");
    expect((await engine.sandboxes.restart("one", signal)).status).toBe("ready");
  });

  it("succeeds for only one of two sandboxes that compete for the last place", async () => {
    const { engine, driver, create } = await testEngine({ maxSandboxes: 2 });
    for (const name of ["one", "two"]) await create(name);
    for (const instance of driver.instances.values()) instance.die();
    await eventually(async () => expect((await engine.stats()).sandboxes.failed).toBe(2));
    // A failed sandbox counts until nothing of its instance is left.
    for (const name of ["one", "two"])
      await eventually(async () => expect((await engine.sandboxes.get(name)).lease.state).toBe("none"));
    await create("three");
    const codes = await Promise.all(
      ["one", "two"].map((name) => codeOf(engine.sandboxes.restart(name, signal))),
    );
    expect(codes.toSorted()).toEqual(["fulfilled", "too_many_sandboxes"]);
  });

  it("is refused while the files are gone, and so is standby; the instance keeps running", async () => {
    const { engine, driver, id, instance, status } = await boxed();
    driver.filesRemoved.add(id);
    await eventually(async () => expect(await status()).toBe("degraded"));
    const error = await engine.sandboxes.restart("one", signal).catch((thrown: unknown) => thrown);
    expect(error).toMatchObject({
      code: "wrong_state",
      message: "The sandbox can't be restarted: the files were removed",
    });
    expect(await codeOf(engine.sandboxes.standby("one", signal))).toBe("wrong_state");
    expect(instance().alive).toBe(true);
    driver.filesRemoved.delete(id);
    await eventually(async () => expect(await status()).toBe("ready"));
    expect((await engine.sandboxes.get(id)).generation).toBe(1);
  });

  it("of a failed sandbox is promised only while its files are there", async () => {
    const { engine, driver, id, fail } = await boxed();
    await fail();
    const message = async () => (await engine.sandboxes.get(id)).cause?.message;
    const usual = await message();
    driver.filesRemoved.add(id);
    await eventually(async () => expect(await message()).toMatch(/files can't be read, and a restart can't/));
    const refusal = await engine.execs.start("one", { argv: ["true"] }, { signal }).catch((thrown) => thrown);
    expect(refusal).toMatchObject({
      code: "sandbox_failed",
      message: `The sandbox failed: ${await message()}`,
    });
    driver.filesRemoved.delete(id);
    await eventually(async () => expect(await message()).toBe(usual));
  });

  it("is refused for a sandbox that was never ready, is deleted, or is in standby", async () => {
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

  it("that is overtaken by a delete leaves nothing", async () => {
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
  it("can be read from disk, while an exec is refused as failed", async () => {
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
