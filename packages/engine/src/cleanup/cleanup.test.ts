import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { DatabaseSync } from "node:sqlite";
import type { ExecId, SandboxId, SweepLayer } from "@holdfast/contract";
import { describe, expect, it } from "vitest";
import { isAbove, oversizeOf, shortageOf } from "../launch/admission.ts";
import { BREAKER_CLOSED, nextBreaker } from "../launch/launch-breaker.ts";
import { FairQueue } from "../lib/fair-queue.ts";
import { systemIds } from "../lib/ids.ts";
import { queuedSandbox } from "../testing/samples.ts";
import { codeOf, eventually, never, remove, signal, testEngine } from "../testing/test-engine.ts";
import { factsOf, maySuspend, ruleFor } from "./sweep-rules.ts";

describe("the removal rule of a sandbox", () => {
  const running = queuedSandbox({ phase: { name: "running" }, createdAt: 1_000 });
  const living = (lifecycle: object) => ({ ...running, spec: { ...running.spec, lifecycle } });
  const failed = { name: "failed", cause: { code: "x", message: "y" }, keptUntil: 5_000 } as const;
  const asleep = { name: "standby", checkpoint: null, failedWakes: 0 } as const;
  const verdict = (
    record: typeof running,
    { now = 9_000, execs = 0, calls = 0, since = 0, short = false } = {},
  ) => ruleFor({ record, execsUnderWay: execs, callsUnderWay: calls, reachableSince: since, now }, { short });
  const idle = { ...living({ idleTtlMs: 5_000 }), lastActivityAt: 4_000 };

  it.each([
    ["a sandbox without a TTL, however old", verdict(running, { now: 1e12, short: true }), null],
    ["a sandbox within its TTL", verdict(living({ ttlMs: 10_000 })), null],
    ["a busy sandbox past its TTL", verdict(living({ ttlMs: 5_000 }), { execs: 3 }), "past_ttl"],
    ["a sandbox past its idle TTL", verdict(idle), "past_idle_ttl"],
    ["a sandbox that no server served for that long", verdict(idle, { since: 4_001 }), null],
    ["a sandbox that was used since", verdict(idle, { now: 8_999 }), null],
    ["an idle sandbox with an open exec", verdict(idle, { execs: 1 }), null],
    ["an idle sandbox with a call in progress", verdict(idle, { calls: 1 }), null],
    ["a sandbox in standby past its idle TTL", verdict({ ...idle, phase: asleep }), "past_idle_ttl"],
    ["a queued sandbox past its idle TTL", verdict({ ...idle, phase: { name: "queued" } }), null],
    ["a failed sandbox within its retention", verdict({ ...running, phase: failed }, { now: 4_999 }), null],
    ["a failed sandbox past its retention", verdict({ ...running, phase: failed }), "kept_long_enough"],
    [
      "a failed sandbox that may still have processes",
      verdict({ ...running, phase: failed, lease: { state: "quarantined", raw: "?" } }),
      null,
    ],
    ["a disposable sandbox without a shortage", verdict(living({ disposable: true })), null],
    [
      "a disposable sandbox in a shortage",
      verdict(living({ disposable: true }), { short: true }),
      "disposable",
    ],
    ["a busy disposable sandbox", verdict(living({ disposable: true }), { short: true, execs: 1 }), null],
    [
      "a disposable sandbox in standby in a shortage",
      verdict({ ...living({ disposable: true }), phase: asleep }, { short: true }),
      "disposable",
    ],
    [
      "a queued sandbox",
      verdict({ ...living({ disposable: true }), phase: { name: "queued" } }, { short: true }),
      null,
    ],
    ["a sandbox in deletion", verdict({ ...running, phase: { name: "deleting", cause: null } }), null],
  ])("%s", (_what, found, expected) => expect(found).toBe(expected));
});

it("a supervised process counts as an open exec between two runs", () => {
  const live = { record: queuedSandbox({}), openExecs: new Set(), calls: 0, hasLiveProcess: true };
  expect(factsOf(live as never).execsUnderWay).toBe(1);
  expect(factsOf({ ...live, hasLiveProcess: false } as never).execsUnderWay).toBe(0);
});

describe("suspension to relieve the host", () => {
  const running = queuedSandbox({ phase: { name: "running" }, lastActivityAt: 1_000 });
  const living = (lifecycle: object) => ({ ...running, spec: { ...running.spec, lifecycle } });
  const verdict = (
    record: typeof running,
    { now = 9_000, execs = 0, calls = 0, kind = "memory" as "memory" | "files" } = {},
  ) =>
    maySuspend(
      { record, execsUnderWay: execs, callsUnderWay: calls, reachableSince: 0, now },
      { kind, idleMs: 5_000 },
    );

  it.each([
    ["an idle sandbox", verdict(running), true],
    ["a sandbox that was used recently", verdict(running, { now: 5_999 }), false],
    ["a sandbox with an open exec", verdict(running, { execs: 1 }), false],
    ["a sandbox with a call in progress", verdict(running, { calls: 1 }), false],
    ["a sandbox that would lose its memory", verdict(running, { kind: "files" }), false],
    [
      "a sandbox with idleStandbyMs, even without memory standby",
      verdict(living({ idleStandbyMs: 1e9 }), { kind: "files" }),
      true,
    ],
    [
      "a sandbox that cold-starts after memory loss",
      verdict(living({ onMemoryLoss: "cold-start" }), { kind: "files" }),
      true,
    ],
    [
      "a sandbox that fails after memory loss",
      verdict(living({ onMemoryLoss: "fail" }), { kind: "files" }),
      false,
    ],
  ])("%s", (_what, found, expected) => expect(found).toBe(expected));
});

describe("admission", () => {
  const room = {
    cpus: 1,
    memoryTotalBytes: 100,
    memoryFreeBytes: 50,
    diskTotalBytes: 100,
    diskFreeBytes: 50,
  };

  it("names the short resource, with the figures", () => {
    const reserve = { diskReserveBytes: 10, memoryReserveBytes: 10 };
    expect(shortageOf(room, reserve)).toBeNull();
    expect(shortageOf({ ...room, diskFreeBytes: 9 }, reserve)?.code).toBe("disk_full");
    expect(shortageOf({ ...room, memoryFreeBytes: 9 }, reserve)?.code).toBe("low_memory");
    expect(isAbove(room, 0.8)).toBe(false);
    expect(isAbove({ ...room, diskFreeBytes: 19 }, 0.8)).toBe(true);
    expect(isAbove({ ...room, memoryFreeBytes: 19 }, 0.8)).toBe(true);
  });

  it("refuses limits above what the host has, and says what it has", async () => {
    const { engine, create } = await testEngine();
    const host = { cpus: 2, memoryTotalBytes: 1 << 30 };
    expect(oversizeOf(host, { memoryMb: 1_024, cpus: 2 })).toBeNull();
    const message =
      "memoryMb is 1025, but this host has 1024 MB of memory; cpus is 2.5, but this host has 2.";
    expect(oversizeOf(host, { memoryMb: 1_025, cpus: 2.5 })).toBe(message);

    const large = { resources: { memoryMb: 102_400, cpus: 64 } };
    const options = { wait: true, signal };
    const refused = engine.sandboxes.create({ name: "large", ...large }, options);
    expect(await codeOf(refused)).toBe("invalid_request");
    expect(await codeOf(engine.sandboxes.get("large"))).toBe("sandbox_not_found");
    await create("kept");
    const again = { name: "kept", ifExists: "return" as const, ...large };
    expect((await engine.sandboxes.create(again, options)).existed).toBe(true);
    const cloud = await engine.sandboxes.create(
      { name: "cloud", ...large },
      { ...options, beyondHost: true },
    );
    expect(cloud.sandbox.resources).toMatchObject(large.resources);
  });

  it("rejects if the disk is low, removes stale sandboxes only, and admits if that freed enough", async () => {
    const { driver, engine, create } = await testEngine({
      maintainEveryMs: 1e9,
      sweepAgeMs: 1e9,
      failedKeptMs: 1,
    });
    await create("kept");
    const { sandbox } = await create("stale");
    driver.instances.get(sandbox.id as SandboxId)?.die();
    await eventually(async () => expect((await engine.sandboxes.get("stale")).status).toBe("failed"));
    await eventually(async () => expect((await engine.sandboxes.get("stale")).lease.state).toBe("none"));
    driver.diskFreeBytes = 10;
    expect(await codeOf(create("no"))).toBe("disk_full");
    expect(driver.directories.has(sandbox.id as SandboxId)).toBe(false);
    expect((await engine.sandboxes.get("kept")).status).toBe("ready");
    driver.diskFreeBytes = 1 << 30;
    expect((await create("yes")).sandbox.status).toBe("ready");
  });

  it("rejects if the host can't be measured, and removes nothing", async () => {
    const { driver, engine, create } = await testEngine();
    await create("kept");
    driver.faults.capacity = () => Promise.reject(new Error("no statfs"));
    expect(await codeOf(create("no"))).toBe("capacity");
    expect((await engine.sandboxes.get("kept")).status).toBe("ready");
  });

  it("counts per key, and frees the place after the verified delete", async () => {
    const { engine } = await testEngine({ maxSandboxesPerKey: 1 });
    const create = (name: string, owner: string) =>
      engine.sandboxes.create({ name }, { wait: true, owner, signal });
    await create("a", "one");
    expect(await codeOf(create("b", "one"))).toBe("too_many_sandboxes");
    await create("c", "two");
    await remove(engine, "a");
    expect((await create("b", "one")).sandbox.status).toBe("ready");
  });

  it("suspends launches that keep failing, probes with one, and resumes when it succeeds", async () => {
    const { driver, engine, create } = await testEngine({ launchFailuresMax: 2, launchesSuspendedMs: 300 });
    driver.faults.launch = () => Promise.reject(new Error("no runtime"));
    expect(await codeOf(create())).toBe("launch_failed");
    expect(await codeOf(create())).toBe("launch_failed");
    expect(await codeOf(create())).toBe("launches_suspended");
    expect((await engine.stats()).launches).toMatchObject({ state: "suspended", failuresInARow: 2 });
    const tries = driver.launches;
    await eventually(async () => expect(await codeOf(create())).toBe("launch_failed"));
    expect(driver.launches).toBe(tries + 1);
    driver.faults = {};
    await eventually(async () => expect(await codeOf(create())).toBe("fulfilled"));
    expect((await engine.stats()).launches).toMatchObject({ state: "open", failuresInARow: 0 });
    await eventually(async () => {
      const types = (await engine.events({ limit: 100 })).items.map(({ type }) => type);
      expect(types.filter((type) => type.startsWith("launches."))).toEqual([
        "launches.suspended",
        "launches.resumed",
      ]);
    });
  });

  it("lets one probe through at a time, and the next when it was cancelled", () => {
    const settings = { launchFailuresMax: 1, launchesSuspendedMs: 100 };
    const cause = { code: "x", message: "y" };
    const down = nextBreaker(BREAKER_CLOSED, { type: "failed", now: 0, cause }, settings);
    expect(down).toMatchObject({ name: "open", until: 100 });
    if (down === null) return;
    expect(nextBreaker(down, { type: "ask", now: 99 }, settings)).toBeNull();
    const probing = nextBreaker(down, { type: "ask", now: 100 }, settings);
    expect(probing?.name).toBe("half-open");
    if (probing === null) return;
    expect(nextBreaker(probing, { type: "ask", now: 200 }, settings)).toBeNull();
    expect(nextBreaker(probing, { type: "overtaken", now: 200 }, settings)).toMatchObject({ until: 200 });
    expect(nextBreaker(probing, { type: "failed", now: 200, cause }, settings)).toMatchObject({ until: 300 });
    expect(nextBreaker(probing, { type: "succeeded" }, settings)).toEqual(BREAKER_CLOSED);
  });

  it("does not suspend launches for longer if the clock is set back", () => {
    const settings = { launchFailuresMax: 1, launchesSuspendedMs: 100 };
    const cause = { code: "x", message: "y" };
    const down = nextBreaker(BREAKER_CLOSED, { type: "failed", now: 10_000, cause }, settings);
    expect(down && nextBreaker(down, { type: "ask", now: 5_000 }, settings)?.name).toBe("half-open");
  });

  it("lets owners take turns, however many each has queued", () => {
    const line = new FairQueue<string>();
    for (const item of ["a1", "a2", "a3"]) line.join("a", item);
    line.join("b", "b1");
    line.join(null, "n1");
    expect(line.leave("a2")).toBe(true);
    expect(line.leave("a2")).toBe(false);
    expect(line.length).toBe(4);
    expect([line.next(), line.next(), line.next(), line.next(), line.next()]).toEqual([
      "a1",
      "b1",
      "n1",
      "a3",
      undefined,
    ]);
    expect(line.length).toBe(0);
  });
});

describe("sweeps", () => {
  it("remove a sandbox past its TTL, even if it is busy, and record it", async () => {
    const { engine } = await testEngine();
    await engine.sandboxes.create({ name: "old", lifecycle: { ttlMs: 1_000 } }, { wait: true, signal });
    await engine.execs.start("old", { id: "a", argv: ["sleep"] }, { signal });
    await eventually(async () => expect(await codeOf(engine.sandboxes.get("old"))).toBe("sandbox_not_found"));
    await eventually(async () => expect(await engine.execs.get("a")).toMatchObject({ status: "cancelled" }));
    await eventually(async () => {
      const { items } = await engine.events({ limit: 100, types: ["sweep.done"] });
      expect(items[0]?.data).toMatchObject({ items: [{ rule: "past_ttl", action: "removed" }] });
    });
    const { sweeps } = await engine.stats();
    expect(sweeps.map(({ layer }) => layer)).toEqual(["stale", "age", "pressure", "reconcile"]);
    expect(sweeps.reduce((sum, { removed }) => sum + removed, 0)).toBeGreaterThan(0);
  });

  it("remove a sandbox that was idle for its idle TTL after its last exec ended, also after a restart", async () => {
    const { engine, restart } = await testEngine();
    const lifecycle = { idleTtlMs: 1_000 };
    const make = (name: string) => engine.sandboxes.create({ name, lifecycle }, { wait: true, signal });
    await make("busy");
    await make("idle");
    await engine.execs.start("busy", { id: "a", argv: ["sleep"], keepAwake: false }, { signal });
    const isGone = async (name: string, at = engine) =>
      expect(await codeOf(at.sandboxes.get(name))).toBe("sandbox_not_found");
    await eventually(() => isGone("idle"));
    expect(await engine.sandboxes.get("busy")).toMatchObject({ status: "ready" });
    await engine.stop();
    const next = await restart();
    await next.cleanup({ dryRun: false, emergency: false });
    expect(await next.execs.get("a")).toMatchObject({ status: "running" });
    await next.execs.cancel("a", signal);
    const { items } = await next.cleanup({ dryRun: true, emergency: false });
    // The end of an exec counts as use, so that its output is not deleted right away.
    expect(items).toEqual([]);
    await eventually(() => isGone("busy", next));
  });

  it("on request list what would be removed, and remove disposable sandboxes only in an emergency and when idle", async () => {
    const { engine } = await testEngine({ sweepPressureMs: 1e9 });
    const make = (name: string) =>
      engine.sandboxes.create({ name, lifecycle: { disposable: true } }, { wait: true, signal });
    await make("idle");
    await make("busy");
    await engine.execs.start("busy", { argv: ["sleep"] }, { signal });
    const dry = await engine.cleanup({ dryRun: true, emergency: true });
    const message = "an emergency cleanup was requested, and the sandbox was created disposable";
    expect(dry.items).toMatchObject([{ rule: "disposable", action: "would_remove", message }]);
    expect(dry.layers).toEqual(["stale", "age", "pressure"]);
    expect((await engine.cleanup({ dryRun: false, emergency: false })).removed).toBe(0);
    const done = await engine.cleanup({ dryRun: false, emergency: true });
    expect(done.items).toMatchObject([{ rule: "disposable", action: "removed", message }]);
    expect(done.layers).toContain("reconcile");
    expect((await engine.sandboxes.get("busy")).status).toBe("ready");
    expect(await codeOf(engine.sandboxes.get("idle"))).toBe("sandbox_not_found");
  });

  it("in an emergency on request suspend idle sandboxes before they remove any", async () => {
    const { engine, driver } = await testEngine({ sweepPressureMs: 1e9, pressureIdleMs: 0 });
    const make = (name: string, lifecycle = {}) =>
      engine.sandboxes.create({ name, lifecycle }, { wait: true, signal });
    const { sandbox: idle } = await make("idle");
    const { sandbox: disposable } = await make("disposable", { disposable: true });
    await make("busy");
    await engine.execs.start("busy", { argv: ["sleep"] }, { signal });
    driver.diskFreeBytes = 10;
    expect((await engine.cleanup({ dryRun: true, emergency: true })).items).toMatchObject([
      { rule: "disposable", action: "would_remove" },
    ]);
    driver.diskFreeBytes = 1 << 30;
    const dry = await engine.cleanup({ dryRun: true, emergency: true });
    expect(dry.items).toMatchObject([
      { rule: "idle", action: "would_put_to_standby", sandboxId: idle.id },
      { rule: "disposable", action: "would_remove", sandboxId: disposable.id },
    ]);
    expect((await engine.sandboxes.get("idle")).status).toBe("ready");
    const done = await engine.cleanup({ dryRun: false, emergency: true });
    expect(done).toMatchObject({ putToStandby: 1, removed: 1, failed: 0 });
    expect(done.items).toMatchObject([
      { rule: "idle", action: "put_to_standby", message: expect.stringContaining("was requested") },
      { rule: "disposable", action: "removed" },
    ]);
    expect((await engine.sandboxes.get("idle")).status).toBe("standby");
    expect((await engine.sandboxes.get("busy")).status).toBe("ready");
    expect(driver.instances.get(idle.id as SandboxId)?.alive).toBe(false);
    const { exec } = await engine.execs.start("idle", { argv: ["exit", "4"] }, { signal });
    expect(await engine.execs.wait(exec.id, { waitMs: 5_000, signal })).toMatchObject({ exitCode: 4 });
  });

  it("suspend idle sandboxes one by one while memory is short, and never for disk", async () => {
    const { engine, driver, create } = await testEngine({
      sweepPressureMs: 1e9,
      pressureIdleMs: 0,
      standbysAtOnce: 1,
    });
    const { sandbox: oldest } = await create("oldest");
    await create("newer");
    const order = { dryRun: false, emergency: false };
    driver.diskFreeBytes = 10;
    expect((await engine.cleanup(order)).items).toEqual([]);
    driver.diskFreeBytes = 1 << 30;
    expect((await engine.cleanup(order)).items).toEqual([]);
    driver.memoryFreeBytes = 1 << 20;
    expect((await engine.cleanup({ ...order, dryRun: true })).items).toHaveLength(2);
    driver.faults.checkpoint = async () => {
      driver.memoryFreeBytes = 1 << 30;
    };
    expect((await engine.cleanup(order)).items).toMatchObject([
      { rule: "idle", action: "put_to_standby", sandboxId: oldest.id },
    ]);
    expect((await engine.sandboxes.get("newer")).status).toBe("ready");
  });

  it("continue if one sandbox can't be suspended, and skip it for a while", async () => {
    const { engine, driver, create } = await testEngine({ sweepPressureMs: 1e9, pressureIdleMs: 0 });
    const { sandbox: bad } = await create("bad");
    await create("good");
    driver.memoryFreeBytes = 1 << 20;
    let tries = 0;
    driver.faults.checkpoint = async ({ sandboxId }) => {
      if (sandboxId !== bad.id) return;
      tries += 1;
      throw new Error("no");
    };
    const report = await engine.cleanup({ dryRun: false, emergency: false });
    expect(report).toMatchObject({ putToStandby: 1, failed: 1 });
    expect((await engine.sandboxes.get("bad")).status).toBe("ready");
    expect((await engine.sandboxes.get("good")).status).toBe("standby");
    await engine.cleanup({ dryRun: false, emergency: false });
    expect(tries).toBe(1);
    expect((await engine.cleanup({ dryRun: false, emergency: true })).failed).toBe(1);
    expect(tries).toBe(2);
  });

  it("do not suspend a sandbox that is used before its turn", async () => {
    const { engine, driver, create } = await testEngine({
      sweepPressureMs: 1e9,
      pressureIdleMs: 300,
      maintainEveryMs: 1e9,
    });
    await create("used");
    driver.memoryFreeBytes = 1 << 20;
    await new Promise((resolve) => setTimeout(resolve, 350));
    const memoryBytes = driver.memoryBytes.bind(driver);
    driver.memoryBytes = async (...given) => {
      driver.memoryBytes = memoryBytes;
      await engine.execs.start("used", { argv: ["sleep"] }, { signal });
      return memoryBytes(...given);
    };
    expect((await engine.cleanup({ dryRun: false, emergency: false })).items).toEqual([]);
    expect((await engine.sandboxes.get("used")).status).toBe("ready");
  });

  it("do not remove a disposable sandbox that is used before its turn", async () => {
    const { engine, driver } = await testEngine({ sweepPressureMs: 1e9, maintainEveryMs: 1e9 });
    await engine.sandboxes.create({ name: "used", lifecycle: { disposable: true } }, { wait: true, signal });
    driver.diskFreeBytes = 10;
    let measured = 0;
    driver.faults.capacity = async () => {
      measured += 1;
      // The first measurement reports a shortage; the sandbox is used before the second is answered.
      if (measured === 2) await engine.execs.start("used", { argv: ["sleep"] }, { signal });
    };
    expect((await engine.cleanup({ dryRun: false, emergency: false })).items).toEqual([]);
    expect(measured).toBeGreaterThan(1);
    expect((await engine.sandboxes.get("used")).status).toBe("ready");
  });

  it("share one run for concurrent requests", async () => {
    const { engine } = await testEngine();
    const order = { dryRun: false, emergency: false };
    const [one, two, dry] = await Promise.all([
      engine.cleanup(order),
      engine.cleanup(order),
      engine.cleanup({ ...order, dryRun: true }),
    ]);
    expect(two).toBe(one);
    expect(dry).not.toBe(one);
    expect(await engine.cleanup(order)).not.toBe(one);
  });

  it("continue if one item can't be removed", async () => {
    const { engine, store } = await testEngine({
      maintainEveryMs: 1e9,
      sweepAgeMs: 1e9,
      sweepPressureMs: 1e9,
    });
    for (const name of ["one", "two"])
      await engine.sandboxes.create({ name, lifecycle: { disposable: true } }, { wait: true, signal });
    const commit = store.commit.bind(store);
    let refused = "";
    store.commit = (order) => {
      const [change] = order.changes;
      const isDelete = change?.kind === "sandbox.update" && change.record.phase.name === "deleting";
      if (!isDelete || (refused !== "" && refused !== change.record.id)) return commit(order);
      refused = change.record.id;
      return Promise.reject(new Error("no space"));
    };
    const report = await engine.cleanup({ dryRun: false, emergency: true });
    expect(report).toMatchObject({ removed: 1, failed: 1 });
  });
});

describe("an audit", () => {
  it("finds orphans, and says when it acts", async () => {
    const { driver, engine } = await testEngine({ orphanGraceMs: 1e9 });
    const stray = systemIds.sandbox();
    driver.directories.add(stray);
    const report = await engine.audit();
    expect(report).toMatchObject({
      complete: true,
      findings: [{ kind: "orphan", action: "waits", sandboxId: stray }],
    });
    expect(await codeOf(engine.sandboxes.get(stray))).toBe("pending_cleanup");
    expect(await codeOf(remove(engine, stray))).toBe("sandbox_gone");
    expect(driver.directories.has(stray)).toBe(false);
    expect(await codeOf(engine.sandboxes.get(stray))).toBe("sandbox_not_found");
    expect(engine.lastAudit()).toEqual(report);
  });

  it("ends lingering processes of a stopped sandbox", async () => {
    const { driver, engine, create } = await testEngine();
    const { sandbox } = await create("one");
    const id = sandbox.id as SandboxId;
    const instance = driver.instances.get(id);
    instance?.die();
    await eventually(async () => expect((await engine.sandboxes.get("one")).lease.state).toBe("none"));
    if (instance) instance.alive = true;
    const { findings } = await engine.audit();
    expect(findings).toMatchObject([{ kind: "lingering", action: "corrected", sandboxId: id }]);
    await eventually(() => expect(instance?.alive).toBe(false));
  });

  it("is incomplete and removes nothing if the host can't be listed", async () => {
    const { driver, engine, create } = await testEngine();
    const { sandbox } = await create("one");
    driver.list = () => Promise.reject(new Error("no /proc"));
    driver.faults.observe = () => ({ seen: "unknown", at: 0, why: "no /proc" });
    const report = await engine.audit();
    expect(report.complete).toBe(false);
    expect(report.findings).toMatchObject([{ kind: "unknown", action: "left", sandboxId: sandbox.id }]);
    driver.faults = {};
    await eventually(async () => expect((await engine.sandboxes.get("one")).status).toBe("ready"));
  });

  it("recognises keepers of another version and leaves them serving", async () => {
    const { driver, engine, create } = await testEngine();
    await create("one");
    driver.keeperVersion = "newer";
    const { findings } = await engine.audit();
    expect(findings).toMatchObject([{ kind: "older_version", action: "left" }]);
    expect((await engine.sandboxes.get("one")).status).toBe("ready");
  });
});

async function temporaryDirectory() {
  const path = await mkdtemp(join(tmpdir(), "holdfast-engine-"));
  return { path, [Symbol.asyncDispose]: () => rm(path, { recursive: true, force: true }) };
}

describe("a sandbox whose record can't be read", () => {
  it("is left alone, reported as pending cleanup, and removed by an explicit delete", async () => {
    await using directory = await temporaryDirectory();
    const path = join(directory.path, "holdfast.db");
    const { engine, create, driver, restart } = await testEngine({}, path);
    const { sandbox } = await create("one");
    await engine.stop();
    const database = new DatabaseSync(path);
    database.exec("update sandboxes set spec = '{'");
    database.close();
    const next = await restart();
    expect(await codeOf(next.sandboxes.get(sandbox.id))).toBe("pending_cleanup");
    expect((await next.audit()).findings).toMatchObject([{ kind: "unreadable", action: "left" }]);
    expect(driver.instances.get(sandbox.id as SandboxId)?.alive).toBe(true);
    expect(await codeOf(remove(next, sandbox.id))).toBe("sandbox_gone");
    expect(driver.instances.size).toBe(0);
    expect((await next.audit()).findings).toEqual([]);
    expect((await next.stats()).totals).toMatchObject({ created: 1, terminated: 1 });
  });

  it("keeps its execs without an outcome until its delete, which reports a failure", async () => {
    await using directory = await temporaryDirectory();
    const path = join(directory.path, "holdfast.db");
    const { engine, create, driver, restart } = await testEngine({}, path);
    const { sandbox } = await create("one");
    await engine.execs.start("one", { id: "a", argv: ["sleep"] }, { signal });
    await engine.stop();
    const database = new DatabaseSync(path);
    database.exec("update sandboxes set spec = '{'");
    database.close();
    const next = await restart();
    expect((await next.execs.get("a")).endedAt).toBeNull();
    driver.faults.stop = async () => {
      throw new Error("busy");
    };
    expect(await codeOf(remove(next, sandbox.id))).toBe("pending_cleanup");
    expect((await next.execs.get("a")).endedAt).toBeNull();
    driver.faults = {};
    expect(await codeOf(remove(next, sandbox.id))).toBe("sandbox_gone");
    expect(await next.execs.get("a")).toMatchObject({ status: "lost", cause: { code: "sandbox_gone" } });
  });
});

describe("memory loss", () => {
  const cold = { name: "one", lifecycle: { onMemoryLoss: "cold-start" } } as const;

  it("is followed by a restart from the files if the policy says so, with its execs ended as lost", async () => {
    const { driver, engine } = await testEngine();
    const { sandbox } = await engine.sandboxes.create(cold, { wait: true, signal });
    const id = sandbox.id as SandboxId;
    await engine.execs.start("one", { id: "a", argv: ["sleep"] }, { signal });
    driver.instances.get(id)?.die();
    await eventually(async () =>
      expect(await engine.sandboxes.get("one")).toMatchObject({ status: "ready", generation: 2 }),
    );
    expect(await engine.execs.get("a")).toMatchObject({ status: "lost", cause: { code: "keeper_died" } });
    const { exec } = await engine.execs.start("one", { argv: ["exit", "4"] }, { signal });
    expect(await engine.execs.wait(exec.id, { waitMs: 5_000, signal })).toMatchObject({ exitCode: 4 });
    const types = (await engine.events({ ref: "one", limit: 100 })).items.map(({ type }) => type);
    expect(types).toContain("sandbox.restarting");
  });

  it("keeps followers of an exec's output waiting for its end, and serves others meanwhile", async () => {
    const { driver, engine } = await testEngine();
    const { sandbox } = await engine.sandboxes.create(cold, { wait: true, signal });
    await engine.execs.start("one", { id: "a", argv: ["sleep"] }, { signal });
    const { end } = driver.journals;
    driver.journals.end = async (...given) => {
      await new Promise((resolve) => setTimeout(resolve, 50));
      return end(...given);
    };
    const followed = Array.fromAsync(engine.execs.output("a", { follow: true, signal }));
    await eventually(async () => expect((await engine.stats()).readers).toBe(1));
    driver.instances.get(sandbox.id as SandboxId)?.die();
    expect((await followed).at(-1)).toMatchObject({ type: "end", exec: { status: "lost" } });
  });

  it("while launches are suspended is repaired once launches resume", async () => {
    const { driver, engine, create } = await testEngine({ launchFailuresMax: 1, launchesSuspendedMs: 200 });
    const { sandbox } = await engine.sandboxes.create(cold, { wait: true, signal });
    driver.faults.launch = async () => {
      throw new Error("no");
    };
    expect(await codeOf(create("two"))).toBe("launch_failed");
    driver.faults = {};
    driver.instances.get(sandbox.id as SandboxId)?.die();
    await eventually(async () =>
      expect(await engine.sandboxes.get("one")).toMatchObject({ status: "ready", generation: 2 }),
    );
  });

  it("that repeats too often ends in failed, with all data kept", async () => {
    const { driver, engine } = await testEngine({ restartsMax: 1 });
    const { sandbox } = await engine.sandboxes.create(cold, { wait: true, signal });
    const id = sandbox.id as SandboxId;
    driver.instances.get(id)?.die();
    await eventually(async () => expect((await engine.sandboxes.get("one")).generation).toBe(2));
    await eventually(async () => expect((await engine.sandboxes.get("one")).status).toBe("ready"));
    driver.instances.get(id)?.die();
    await eventually(async () => expect((await engine.sandboxes.get("one")).status).toBe("failed"));
    expect(driver.directories.has(id)).toBe(true);
  });

  it("by a reboot is reported as such, and each sandbox follows its policy", async () => {
    const { driver, engine, create, restart } = await testEngine();
    await engine.sandboxes.create(cold, { wait: true, signal });
    await create("two");
    await engine.stop();
    for (const instance of driver.instances.values()) instance.die();
    driver.instances.clear();
    driver.hostBootId = "next boot";
    const next = await restart();
    await eventually(async () =>
      expect(await next.sandboxes.get("one")).toMatchObject({ status: "ready", generation: 2 }),
    );
    expect(await next.sandboxes.get("two")).toMatchObject({
      status: "failed",
      cause: { code: "host_rebooted" },
    });
  });

  it("followed by a failed restart keeps the files and the name", async () => {
    const { driver, engine } = await testEngine();
    const { sandbox } = await engine.sandboxes.create(cold, { wait: true, signal });
    driver.faults.launch = () => Promise.reject(new Error("no"));
    driver.instances.get(sandbox.id as SandboxId)?.die();
    await eventually(async () => expect((await engine.sandboxes.get("one")).status).toBe("failed"));
    await eventually(async () => expect((await engine.sandboxes.get("one")).lease.state).toBe("none"));
    expect(driver.directories.has(sandbox.id as SandboxId)).toBe(true);
  });
});

it("a layer of the sweeps that hangs does not delay the others", async () => {
  const { engine, store } = await testEngine();
  const prunable = store.prunable.bind(store);
  const isReleased = Promise.withResolvers<void>();
  store.prunable = async (limits) => {
    await isReleased.promise;
    return prunable(limits);
  };
  const runsOf = async (layer: SweepLayer) =>
    (await engine.stats()).sweeps.find((each) => each.layer === layer)?.runs ?? 0;
  // A run of the first layer that had begun before is completed.
  await eventually(async () => expect(await runsOf("pressure")).toBeGreaterThan(3));
  const [stale, age, pressure] = [await runsOf("stale"), await runsOf("age"), await runsOf("pressure")];
  await eventually(async () => expect(await runsOf("age")).toBeGreaterThan(age + 3));
  await eventually(async () => expect(await runsOf("pressure")).toBeGreaterThan(pressure + 3));
  expect(await runsOf("stale")).toBe(stale);
  isReleased.resolve();
});

describe("a disk that runs out", () => {
  it("that has room again thaws a sandbox although another one can't be thawed", async () => {
    const { driver, create } = await testEngine({
      ...{ diskGuardEveryMs: 30, diskFreezeBytes: 500_000, observeEveryMs: 1e9, healAfterMs: 1e9 },
    });
    const ids: SandboxId[] = [];
    for (const name of ["one", "two"]) ids.push((await create(name)).sandbox.id as SandboxId);
    for (const id of ids) driver.writes.set(id, 50_000);
    driver.diskFreeBytes = 10;
    await eventually(() => expect(driver.frozen.size).toBe(2));
    const [first, second] = ids;
    driver.faults.thaw = (id) => (id === first ? never() : Promise.resolve());
    driver.diskFreeBytes = 1 << 30;
    await eventually(() => expect([...driver.frozen]).toEqual([first]), { timeout: 8_000 });
    expect(driver.frozen.has(second as SandboxId)).toBe(false);
  });

  it("freezes the sandbox that writes fastest, names it, and thaws it when the reserve is free again", async () => {
    const { driver, engine, create } = await testEngine({ diskGuardEveryMs: 30, diskFreezeBytes: 500_000 });
    const { sandbox: calm } = await create("calm");
    const { sandbox: filler } = await create("filler");
    driver.writes.set(calm.id as SandboxId, 1);
    driver.writes.set(filler.id as SandboxId, 50_000);
    driver.diskFreeBytes = 10;
    await eventually(() => expect([...driver.frozen]).toEqual([filler.id]));
    expect(await engine.sandboxes.get("filler")).toMatchObject({
      status: "degraded",
      cause: { code: "disk_filler" },
    });
    expect((await engine.sandboxes.get("calm")).status).toBe("ready");
    driver.diskFreeBytes = 1 << 30;
    await eventually(() => expect(driver.frozen.size).toBe(0));
    await eventually(async () => expect((await engine.sandboxes.get("filler")).status).toBe("ready"));
    await eventually(async () => {
      const types = (await engine.events({ limit: 100 })).items.map(({ type }) => type);
      const told = types.filter((type) => type.startsWith("disk.") || type === "sandbox.frozen");
      expect(told).toEqual(["disk.low", "sandbox.frozen", "disk.recovered"]);
    });
  });

  it("does not prevent the frozen sandbox from being deleted", async () => {
    const { driver, engine, create } = await testEngine({ diskGuardEveryMs: 30, diskFreezeBytes: 500_000 });
    const { sandbox } = await create("filler");
    driver.writes.set(sandbox.id as SandboxId, 50_000);
    driver.diskFreeBytes = 10;
    await eventually(() => expect(driver.frozen.size).toBe(1));
    expect((await remove(engine, "filler")).status).toBe("terminated");
  });
});

describe("a limit on steps", () => {
  it("is counted durably and rejects further steps", async () => {
    const { engine, driver, restart } = await testEngine();
    const limited = { name: "one", lifecycle: { maxExecs: 2 } };
    const { sandbox } = await engine.sandboxes.create(limited, { wait: true, signal });
    await engine.execs.start("one", { id: "a", argv: ["sleep"] }, { signal });
    driver.instances.get(sandbox.id as SandboxId)?.end("a" as ExecId, 0, "");
    await engine.stop();
    const next = await restart();
    expect((await next.sandboxes.get("one")).execsStarted).toBe(1);
    await next.execs.start("one", { argv: ["exit", "0"] }, { signal });
    expect(await codeOf(next.execs.start("one", { argv: ["exit", "0"] }, { signal }))).toBe("exec_limit");
    expect(await next.execs.start("one", { id: "a", argv: ["sleep"] }, { signal })).toMatchObject({
      followed: true,
    });
  });

  it("includes steps that start while a change of the sandbox is being stored", async () => {
    const { engine, store } = await testEngine();
    await engine.sandboxes.create({ name: "one", lifecycle: { maxExecs: 2 } }, { wait: true, signal });
    const commit = store.commit.bind(store);
    store.commit = async (order) => {
      await commit(order);
      if (!order.changes.some(({ kind }) => kind === "sandbox.update")) return;
      store.commit = commit;
      await engine.execs.start("one", { argv: ["exit", "0"] }, { signal });
    };
    await engine.sandboxes.update("one", { labels: { a: "b" } });
    expect((await engine.sandboxes.get("one")).execsStarted).toBe(1);
    await engine.execs.start("one", { argv: ["exit", "0"] }, { signal });
    expect(await codeOf(engine.execs.start("one", { argv: ["exit", "0"] }, { signal }))).toBe("exec_limit");
  });
});
