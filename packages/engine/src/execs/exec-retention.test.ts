import type { ExecId, SandboxId } from "@holdfast/contract";
import { describe, expect, it } from "vitest";
import { codeOf, eventually, remove, signal, world } from "./testing/world.ts";

/** A sandbox that printed something and was deleted. */
async function leftBehind(made: Awaited<ReturnType<typeof world>>, name: string, output: string) {
  const { sandbox } = await made.create(name);
  const instance = made.driver.instances.get(sandbox.id as SandboxId);
  await made.engine.execs.start(name, { id: name, argv: ["sleep"] }, { signal });
  instance?.end(name as ExecId, 0, output);
  await made.engine.execs.wait(name, { waitMs: 10_000, signal });
  await remove(made.engine, name);
}

const OUTPUT = "x".repeat(1_000);
const limited = { journalsOfDeletedBytes: 2_500, retentionEveryMs: 50 };

describe("journals of deleted sandboxes that take too much together", () => {
  it("go before their time, the oldest first, and that is told", async () => {
    const made = await world(limited);
    for (const name of ["one", "two", "three"]) await leftBehind(made, name, OUTPUT);
    await eventually(async () => expect(await codeOf(made.engine.execs.get("one"))).toBe("exec_not_found"));
    for (const name of ["two", "three"])
      expect(await made.engine.execs.wait(name, { waitMs: 0, signal })).toMatchObject({ stdout: OUTPUT });
    await eventually(async () => {
      const { items } = await made.engine.events({ types: ["execs.forgotten"], limit: 10 });
      expect(items).toMatchObject([{ data: { execs: 1, limitBytes: 2_500 } }]);
    });
    await eventually(() => expect(made.driver.keptJournals.size).toBe(2));
  });

  it("are not counted with those of sandboxes that are there", async () => {
    const made = await world(limited);
    for (const name of ["one", "two"]) await leftBehind(made, name, OUTPUT);
    const { sandbox } = await made.create("live");
    const instance = made.driver.instances.get(sandbox.id as SandboxId);
    for (const id of ["a", "b", "c"]) {
      await made.engine.execs.start("live", { id, argv: ["sleep"] }, { signal });
      instance?.end(id as ExecId, 0, OUTPUT);
      await made.engine.execs.wait(id, { waitMs: 10_000, signal });
    }
    await leftBehind(made, "three", OUTPUT);
    await eventually(async () => expect(await codeOf(made.engine.execs.get("one"))).toBe("exec_not_found"));
    for (const id of ["a", "b", "c", "two", "three"])
      expect(await made.engine.execs.get(id)).toMatchObject({ status: "exited" });
  });
});

describe("ended execs of a sandbox that keeps too many", () => {
  it("go early, but for one whose start may still come out of a lost link", async () => {
    const { create, driver, engine } = await world({ journalsPerSandboxBytes: 1_500 });
    const { sandbox } = await create("box");
    const instance = driver.instances.get(sandbox.id as SandboxId);
    driver.faults.start = async () => {
      driver.faults = {};
      for (const link of [...(instance?.links ?? [])]) link.drop("cut");
    };
    for (const id of ["sent-twice", "sent-once", "last"]) {
      await engine.execs.start("box", { id, argv: ["sleep"] }, { signal });
      await eventually(() => expect(instance?.execs.has(id as ExecId)).toBe(true));
      instance?.end(id as ExecId, 0, OUTPUT);
      await engine.execs.wait(id, { waitMs: 10_000, signal });
    }
    await eventually(async () => expect(await codeOf(engine.execs.get("sent-once"))).toBe("exec_not_found"));
    for (const id of ["sent-twice", "last"])
      expect(await engine.execs.get(id)).toMatchObject({ status: "exited" });
  });
});
