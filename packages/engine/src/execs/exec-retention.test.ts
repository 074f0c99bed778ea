import type { ExecId, SandboxId } from "@holdfast/contract";
import { describe, expect, it } from "vitest";
import { codeOf, eventually, remove, signal, testEngine } from "../testing/test-engine.ts";

/** Creates a sandbox, lets an exec in it print something, and deletes the sandbox. */
async function leftBehind(made: Awaited<ReturnType<typeof testEngine>>, name: string, output: string) {
  const { sandbox } = await made.create(name);
  const instance = made.driver.instances.get(sandbox.id as SandboxId);
  await made.engine.execs.start(name, { id: name, argv: ["sleep"] }, { signal });
  instance?.end(name as ExecId, 0, output);
  await made.engine.execs.wait(name, { waitMs: 10_000, signal });
  await remove(made.engine, name);
}

const OUTPUT = "x".repeat(1_000);
const limited = { journalsOfDeletedBytes: 2_500, retentionEveryMs: 50 };

describe("journals of deleted sandboxes that exceed their common limit", () => {
  it("are forgotten early, the oldest first, and an event reports it", async () => {
    const made = await testEngine(limited);
    for (const name of ["one", "two", "three"]) await leftBehind(made, name, OUTPUT);
    await eventually(async () => expect(await codeOf(made.engine.execs.get("one"))).toBe("exec_not_found"));
    for (const name of ["two", "three"])
      expect(await made.engine.execs.wait(name, { waitMs: 0, signal })).toMatchObject({ stdout: OUTPUT });
    await eventually(async () => {
      const { items } = await made.engine.events({ types: ["execs.forgotten"], limit: 10 });
      expect(items).toMatchObject([{ data: { execs: 1, limitBytes: 2_500 } }]);
    });
    await eventually(() => expect(made.driver.archivedJournals.size).toBe(2));
  });

  it("are counted without the journals of live sandboxes", async () => {
    const made = await testEngine(limited);
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
  it("are forgotten early, except an exec whose start may still arrive over a lost link", async () => {
    const { create, driver, engine } = await testEngine({ journalsPerSandboxBytes: 1_500 });
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

describe("an ended exec past its retention", () => {
  it("is kept while its sandbox is paused, because the frozen keeper can't forget it", async () => {
    const { engine, driver, create } = await testEngine({ execRetentionMs: 1_500, retentionEveryMs: 30 });
    const { sandbox } = await create("box");
    const instance = driver.instances.get(sandbox.id as SandboxId);
    const run = async () => {
      await engine.execs.start("box", { id: "again", argv: ["exit", "3"] }, { signal });
      await eventually(async () => expect((await engine.execs.get("again")).status).toBe("exited"));
    };
    await engine.execs.start("box", { id: "again", argv: ["sleep"] }, { signal });
    await engine.sandboxes.pause("box", signal);
    instance?.end("again" as ExecId, 0, "");
    await engine.sandboxes.resume("box", signal);
    await eventually(async () => expect((await engine.execs.get("again")).status).toBe("exited"));
    await engine.sandboxes.pause("box", signal);
    // The retention ends, and several rounds pass.
    await new Promise((resolve) => setTimeout(resolve, 2_000));
    expect((await engine.execs.get("again")).exitCode).toBe(0);
    await engine.sandboxes.resume("box", signal);
    await eventually(async () => expect(await codeOf(engine.execs.get("again"))).toBe("exec_not_found"));
    const before = instance?.starts ?? 0;
    await run();
    expect(instance?.starts).toBeGreaterThan(before);
  });
});
