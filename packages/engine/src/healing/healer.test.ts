import type { EventType, Numbers, SandboxId } from "@holdfast/contract";
import { describe, expect, it } from "vitest";
import type { EngineApi } from "../ports/api.ts";
import { eventually, never, remove, signal, testEngine } from "../testing/test-engine.ts";

const QUICK: Partial<Numbers> = {
  healEveryMs: 10,
  healAfterMs: 40,
  healTryMs: 60,
  healHoldMs: 120,
  healGiveUpMs: 1_000,
  healRestartsPerMinute: 100,
  freezeMs: 200,
  diskGuardEveryMs: 60_000,
};

async function boxed(
  numbers: Partial<Numbers> = {},
  lifecycle: { onMemoryLoss?: "fail" | "cold-start" } = {},
) {
  const made = await testEngine({ ...QUICK, ...numbers });
  const create = async (name: string) => {
    const { sandbox } = await made.engine.sandboxes.create({ name, lifecycle }, { wait: true, signal });
    const id = sandbox.id as SandboxId;
    const instance = () => {
      const found = made.driver.instances.get(id);
      if (found === undefined) throw new Error("there is no instance");
      return found;
    };
    return { id, instance };
  };
  return { ...made, create, ...(await create("one")) };
}

const timeline = async (engine: EngineApi, ref: string, types: readonly EventType[]) =>
  (await engine.events({ ref, types, limit: 1_000 })).items;
const steps = async (engine: EngineApi, ref: string) =>
  (await timeline(engine, ref, ["sandbox.healing"]))
    .filter(({ data }) => !data.failed && !data.waits)
    .map(({ data }) => data.step);
const healed = (engine: EngineApi, ref: string) => timeline(engine, ref, ["sandbox.healed"]);
const times = <Value>(count: number, value: Value): Value[] => Array.from({ length: count }, () => value);
const statusOf = async (engine: EngineApi, ref: string) => (await engine.sandboxes.get(ref)).status;

describe("a sandbox that is not serving", () => {
  it("gets its root remounted while its processes keep running", async () => {
    const { engine, driver, id, instance } = await boxed();
    await engine.execs.start("one", { id: "a", argv: ["sleep"] }, { signal });
    instance().root = false;
    await eventually(async () => expect(await healed(engine, "one")).toHaveLength(1));
    expect((await timeline(engine, "one", ["sandbox.degraded"])).length).toBeGreaterThan(0);
    expect(await steps(engine, "one")).toEqual(["remount"]);
    expect(await engine.sandboxes.get("one")).toMatchObject({
      status: "ready",
      generation: 1,
      recovery: null,
    });
    expect((await engine.execs.get("a")).status).toBe("running");
    expect(driver.launches).toBe(1);
    expect(driver.instances.get(id)?.root).toBe(true);
  });

  it("is thawed if no pause was requested", async () => {
    const { engine, driver, id } = await boxed();
    driver.frozen.add(id);
    await eventually(async () => expect(await healed(engine, "one")).toHaveLength(1));
    expect(await steps(engine, "one")).toEqual(["thaw"]);
  });

  it("reports the current healing step and when the next decision is due", async () => {
    const { engine, driver, instance } = await boxed({ healTryMs: 600 });
    driver.faults.remount = () => Promise.reject(new Error("the mount is busy"));
    instance().root = false;
    await eventually(async () =>
      expect((await engine.sandboxes.get("one")).recovery).toMatchObject({ step: "remount", tries: 1 }),
    );
    const { recovery } = await engine.sandboxes.get("one");
    expect(recovery?.message).toContain("the root is not mounted");
    expect(Date.parse(recovery?.nextAt ?? "")).toBeGreaterThan(Date.parse(recovery?.since ?? ""));
  });

  it("fails with all its data kept if no step helps and its policy is to fail", async () => {
    const { engine, driver, id, instance } = await boxed();
    await engine.execs.start("one", { id: "a", argv: ["sleep"] }, { signal });
    driver.faults.remount = () => Promise.reject(new Error("the mount is busy"));
    instance().root = false;
    await eventually(async () => expect(await statusOf(engine, "one")).toBe("failed"));
    const { cause, keptUntil } = await engine.sandboxes.get("one");
    expect(cause).toMatchObject({ code: "not_healed", cause: { code: "root_unmounted" } });
    expect(cause?.message).toContain("Tried: remount ×2");
    expect(keptUntil).not.toBeNull();
    await eventually(() => expect(driver.instances.get(id)?.alive).toBe(false));
    expect(driver.directories.has(id)).toBe(true);
    expect(await engine.execs.wait("a", { waitMs: 5_000, signal })).toMatchObject({ status: "lost" });
    expect(await steps(engine, "one")).toEqual(["remount", "remount", "restart"]);
    const failures = (await timeline(engine, "one", ["sandbox.healing"])).filter(({ data }) => data.failed);
    expect(failures.map(({ message }) => message)).toEqual(times(2, "The step failed: the mount is busy."));
  });

  it("restarts from its files if its policy says so, and counts as healed only after it has served for a while", async () => {
    const { engine, driver, instance } = await boxed({}, { onMemoryLoss: "cold-start" });
    instance().files.set("/kept", Buffer.from("here"));
    driver.faults.remount = () => Promise.reject(new Error("the mount is busy"));
    instance().root = false;
    await eventually(async () => expect(await healed(engine, "one")).toHaveLength(1));
    expect(await engine.sandboxes.get("one")).toMatchObject({ status: "ready", generation: 2 });
    expect(instance().files.has("/kept")).toBe(true);
    expect((await healed(engine, "one"))[0]?.data).toMatchObject({ by: "restart" });
  });

  it("is restarted a limited number of times", async () => {
    const { engine, driver, id } = await boxed({ restartsMax: 2 }, { onMemoryLoss: "cold-start" });
    driver.faults.remount = () => Promise.reject(new Error("the mount is busy"));
    const breaking = setInterval(() => {
      const there = driver.instances.get(id);
      if (there !== undefined) there.root = false;
    }, 5);
    await eventually(async () => expect(await statusOf(engine, "one")).toBe("failed"));
    clearInterval(breaking);
    expect(driver.launches).toBeLessThanOrEqual(3);
  });

  it("fails after it was healed too often", async () => {
    const { engine, driver, id } = await boxed({ healsMax: 2, healHoldMs: 30 });
    for (let time = 1; time <= 2; time += 1) {
      driver.frozen.add(id);
      await eventually(async () => expect(await healed(engine, "one")).toHaveLength(time));
    }
    driver.frozen.add(id);
    await eventually(async () => expect(await statusOf(engine, "one")).toBe("failed"));
    expect((await engine.sandboxes.get("one")).cause).toMatchObject({ code: "keeps_breaking" });
  });

  it("is left alone while it can't be observed", async () => {
    const { engine, driver } = await boxed();
    driver.faults.observe = () => ({ seen: "unknown", at: Date.now(), why: "EIO" });
    await eventually(async () => expect(await statusOf(engine, "one")).toBe("degraded"));
    await new Promise((resolve) => setTimeout(resolve, 1_500));
    expect(await steps(engine, "one")).toEqual([]);
    driver.faults = {};
    await eventually(async () => expect(await statusOf(engine, "one")).toBe("ready"));
  });
});

describe("a sandbox that can't be healed", () => {
  it("delays no other sandbox", async () => {
    const { engine, driver, create, id, instance } = await boxed({ freezeMs: 2_000 });
    const other = await create("two");
    driver.faults.remount = async () => {
      if (!(driver.instances.get(id)?.root ?? true) && other.instance().root) await never();
    };
    instance().root = false;
    await eventually(async () => expect(await steps(engine, "one")).toContain("remount"));
    driver.frozen.add(other.id);
    await eventually(async () => expect(await healed(engine, "two")).toHaveLength(1), { timeout: 1_500 });
    expect(await statusOf(engine, "one")).toBe("degraded");
  });

  it("can be deleted while healing runs, and nothing is remounted after the delete", async () => {
    const { engine, driver, instance } = await boxed();
    const step = Promise.withResolvers<void>();
    const entered = Promise.withResolvers<void>();
    driver.faults.remount = () => {
      entered.resolve();
      return step.promise;
    };
    const there = instance();
    there.root = false;
    await entered.promise;
    const gone = remove(engine, "one", 5_000);
    await new Promise((resolve) => setTimeout(resolve, 50));
    expect(there.alive).toBe(true);
    step.resolve();
    expect((await gone).status).toBe("terminated");
    expect(driver.instances.size).toBe(0);
  });

  it("is ended within a limit per minute across all sandboxes", async () => {
    const { engine, driver, create } = await boxed({ healRestartsPerMinute: 2 });
    for (const name of ["two", "three", "four", "five"]) await create(name);
    driver.faults.remount = () => Promise.reject(new Error("the mount is busy"));
    for (const instance of driver.instances.values()) instance.root = false;
    await eventually(async () => expect((await engine.stats()).sandboxes.failed).toBe(2));
    await new Promise((resolve) => setTimeout(resolve, 1_000));
    expect((await engine.stats()).sandboxes).toMatchObject({ failed: 2, degraded: 3 });
    const { items } = await engine.sandboxes.list({ status: ["degraded"], limit: 10 });
    for (const { id, recovery } of items) {
      expect(recovery?.message).toContain("is delayed");
      expect(await timeline(engine, id, ["sandbox.healing"])).toContainEqual(
        expect.objectContaining({ data: expect.objectContaining({ waits: true }) }),
      );
    }
  });
});
