import type { SandboxId } from "@holdfast/contract";
import { describe, expect, it } from "vitest";
import { eventually, never, signal, testEngine } from "../testing/test-engine.ts";

const MB = 1_048_576;

async function boxed() {
  const made = await testEngine({ usageSamples: 5 });
  const { sandbox } = await made.create("one");
  return { ...made, id: sandbox.id as SandboxId };
}

describe("the resource report of a sandbox", () => {
  it("has its limits, its usage and a bounded history", async () => {
    const { engine, driver, id } = await boxed();
    let cpuMs = 0;
    const use = setInterval(() => {
      cpuMs += 25;
      driver.usages.set(id, { cpuMs, memoryBytes: 20 * MB, processes: 4, ioOperations: 6 });
    }, 50);
    const report = await eventually(async () => {
      const found = await engine.sandboxes.resources("one", signal);
      expect(found.history).toHaveLength(5);
      expect(found.cpu.percent).toBeGreaterThan(10);
      return found;
    });
    clearInterval(use);
    expect(report).toMatchObject({
      status: "ready",
      cpu: { limitCpus: 2 },
      memory: { bytes: 20 * MB, limitBytes: 1_024 * MB, oomKills: 0 },
      processes: { count: 4, limit: 512 },
      io: { operations: 6 },
    });
    expect(report.operations).toBeGreaterThanOrEqual(6);
  });

  it("has counters that never go back when the kernel's counters are reset", async () => {
    const { engine, driver, id } = await boxed();
    const written = async () => (await engine.sandboxes.resources("one", signal)).io.writtenBytes;
    driver.usages.set(id, { cpuMs: 100, writtenBytes: 1_000 });
    await eventually(async () => expect(await written()).toBe(1_000));
    driver.usages.set(id, { cpuMs: 1, writtenBytes: 10 });
    await eventually(async () => expect(await written()).toBe(1_010));
  });

  it("is current if inspecting its processes fails, and comes from the record if nothing runs", async () => {
    const { engine, driver } = await boxed();
    driver.faults.inspect = () => Promise.reject(new Error("not to be seen"));
    expect((await engine.sandboxes.resources("one", signal)).processes).toMatchObject({
      items: [],
      truncated: true,
    });
    driver.faults = {};
    await engine.sandboxes.standby("one", signal);
    expect(await engine.sandboxes.resources("one", signal)).toMatchObject({
      status: "standby",
      cpu: { percent: 0 },
      memory: { bytes: 0 },
      processes: { count: 0 },
    });
  });

  it("counts file calls and execs as operations", async () => {
    const { engine } = await boxed();
    const before = (await engine.sandboxes.resources("one", signal)).operations;
    await engine.files.list("one", "/etc", { wake: true, limit: 10 }, signal).catch(() => undefined);
    await engine.execs.start("one", { id: "a", argv: ["sleep"] }, { signal });
    expect((await engine.sandboxes.resources("one", signal)).operations).toBeGreaterThan(before);
  });

  it("delays neither the observation pass nor a diagnosis if it can't be measured", async () => {
    const { engine, driver } = await boxed();
    driver.faults.measure = () => never();
    const passes = (await engine.stats()).lastObservationAt;
    const diagnosis = await engine.sandboxes.diagnosis("one", { windowMs: 0 }, signal);
    expect(diagnosis.unseen.join()).toContain("its usage");
    await eventually(async () => expect((await engine.stats()).lastObservationAt).not.toBe(passes));
  });
});

describe("a diagnosis of a live engine", () => {
  it("wakes no sandbox, and works for sleeping, failed and deleted ones", async () => {
    const { engine, id } = await boxed();
    await engine.sandboxes.standby("one", signal);
    expect((await engine.sandboxes.diagnosis("one", {}, signal)).findings[0]?.kind).toBe("asleep");
    expect((await engine.sandboxes.get("one")).status).toBe("standby");
    await engine.sandboxes.remove("one", { graceMs: 0, signal });
    expect((await engine.sandboxes.diagnosis(id, {}, signal)).summary).toContain("deleted");
  });

  it("takes no longer than its maximum window", async () => {
    const { engine } = await boxed();
    const since = performance.now();
    const { windowMs } = await engine.sandboxes.diagnosis(
      "one",
      { windowMs: 600_000 },
      AbortSignal.timeout(30_000),
    );
    expect(windowMs).toBeLessThanOrEqual(12_000);
    expect(performance.now() - since).toBeLessThan(25_000);
  });
});
