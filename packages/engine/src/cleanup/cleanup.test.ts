import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { DatabaseSync } from "node:sqlite";
import type { ExecId, SandboxId } from "@holdfast/contract";
import { describe, expect, it } from "vitest";
import { isAbove, shortageOf } from "./admission.ts";
import { LAUNCHES_OPEN, nextBreaker } from "./breaker.ts";
import { systemIds } from "./clock.ts";
import { FairLine } from "./fair-line.ts";
import { factsOf, mayRest, ruleFor } from "./sweep-rules.ts";
import { queuedSandbox } from "./testing/samples.ts";
import { codeOf, eventually, remove, signal, world } from "./testing/world.ts";

describe("what a sweep may remove", () => {
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
    ["one within its TTL", verdict(living({ ttlMs: 10_000 })), null],
    ["one past its TTL, though busy", verdict(living({ ttlMs: 5_000 }), { execs: 3 }), "past_ttl"],
    ["one that nobody has used for its idle TTL", verdict(idle), "past_idle_ttl"],
    ["one that nobody could have used, without a server", verdict(idle, { since: 4_001 }), null],
    ["one that was used since", verdict(idle, { now: 8_999 }), null],
    ["one that is idle but for an exec", verdict(idle, { execs: 1 }), null],
    ["one that is idle but for a call", verdict(idle, { calls: 1 }), null],
    ["one that sleeps past its idle TTL", verdict({ ...idle, phase: asleep }), "past_idle_ttl"],
    ["one that only waits past its idle TTL", verdict({ ...idle, phase: { name: "queued" } }), null],
    ["a failed one that is still kept", verdict({ ...running, phase: failed }, { now: 4_999 }), null],
    ["a failed one that was kept long enough", verdict({ ...running, phase: failed }), "kept_long_enough"],
    [
      "a failed one whose processes may be there",
      verdict({ ...running, phase: failed, lease: { state: "quarantined", raw: "?" } }),
      null,
    ],
    ["a disposable one while there is room", verdict(living({ disposable: true })), null],
    [
      "a disposable one when there is none",
      verdict(living({ disposable: true }), { short: true }),
      "disposable",
    ],
    ["a disposable one that is busy", verdict(living({ disposable: true }), { short: true, execs: 1 }), null],
    [
      "a disposable one that sleeps, when there is none",
      verdict({ ...living({ disposable: true }), phase: asleep }, { short: true }),
      "disposable",
    ],
    [
      "one that only waits",
      verdict({ ...living({ disposable: true }), phase: { name: "queued" } }, { short: true }),
      null,
    ],
    ["one that is being deleted", verdict({ ...running, phase: { name: "deleting", cause: null } }), null],
  ])("%s", (_what, found, expected) => expect(found).toBe(expected));
});

it("what is started again counts as under way between two runs", () => {
  const cell = { record: queuedSandbox({}), openExecs: new Set(), calls: 0, hasLiveProcess: true };
  expect(factsOf(cell as never).execsUnderWay).toBe(1);
  expect(factsOf({ ...cell, hasLiveProcess: false } as never).execsUnderWay).toBe(0);
});

describe("what may be put to standby for the host's sake", () => {
  const running = queuedSandbox({ phase: { name: "running" }, lastActivityAt: 1_000 });
  const living = (lifecycle: object) => ({ ...running, spec: { ...running.spec, lifecycle } });
  const verdict = (
    record: typeof running,
    { now = 9_000, execs = 0, calls = 0, kind = "memory" as "memory" | "files" } = {},
  ) =>
    mayRest(
      { record, execsUnderWay: execs, callsUnderWay: calls, reachableSince: 0, now },
      { kind, idleMs: 5_000 },
    );

  it.each([
    ["one that nobody has used for a while", verdict(running), true],
    ["one that was used a moment ago", verdict(running, { now: 5_999 }), false],
    ["one with an exec under way", verdict(running, { execs: 1 }), false],
    ["one with a call under way", verdict(running, { calls: 1 }), false],
    ["one that would lose its memory", verdict(running, { kind: "files" }), false],
    [
      "one that asks for standby, whatever that keeps",
      verdict(living({ idleStandbyMs: 1e9 }), { kind: "files" }),
      true,
    ],
    [
      "one that starts anew when it loses its memory",
      verdict(living({ onMemoryLoss: "cold-start" }), { kind: "files" }),
      true,
    ],
    ["one that fails when it does", verdict(living({ onMemoryLoss: "fail" }), { kind: "files" }), false],
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

  it("names what is short, with the figures", () => {
    const reserve = { diskReserveBytes: 10, memoryReserveBytes: 10 };
    expect(shortageOf(room, reserve)).toBeNull();
    expect(shortageOf({ ...room, diskFreeBytes: 9 }, reserve)?.code).toBe("disk_full");
    expect(shortageOf({ ...room, memoryFreeBytes: 9 }, reserve)?.code).toBe("low_memory");
    expect(isAbove(room, 0.8)).toBe(false);
    expect(isAbove({ ...room, diskFreeBytes: 19 }, 0.8)).toBe(true);
    expect(isAbove({ ...room, memoryFreeBytes: 19 }, 0.8)).toBe(true);
  });

  it("refuses where the disk is low, removes only what is stale for it, and admits when that was enough", async () => {
    const { driver, engine, create } = await world({
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

  it("refuses what it can't measure, and destroys nothing", async () => {
    const { driver, engine, create } = await world();
    await create("kept");
    driver.faults.capacity = () => Promise.reject(new Error("no statfs"));
    expect(await codeOf(create("no"))).toBe("capacity");
    expect((await engine.sandboxes.get("kept")).status).toBe("ready");
  });

  it("counts per key, and gives the place back with the verified delete", async () => {
    const { engine } = await world({ maxSandboxesPerKey: 1 });
    const create = (name: string, owner: string) =>
      engine.sandboxes.create({ name }, { wait: true, owner, signal });
    await create("a", "one");
    expect(await codeOf(create("b", "one"))).toBe("too_many_sandboxes");
    await create("c", "two");
    await remove(engine, "a");
    expect((await create("b", "one")).sandbox.status).toBe("ready");
  });

  it("stops trying when launches keep failing, probes with one, and goes on when that works", async () => {
    const { driver, engine, create } = await world({ launchFailuresMax: 2, launchesSuspendedMs: 300 });
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

  it("lets one probe through at a time, and the next when it was given up", () => {
    const settings = { launchFailuresMax: 1, launchesSuspendedMs: 100 };
    const cause = { code: "x", message: "y" };
    const down = nextBreaker(LAUNCHES_OPEN, { type: "failed", now: 0, cause }, settings);
    expect(down).toMatchObject({ name: "suspended", until: 100 });
    if (down === null) return;
    expect(nextBreaker(down, { type: "ask", now: 99 }, settings)).toBeNull();
    const probing = nextBreaker(down, { type: "ask", now: 100 }, settings);
    expect(probing?.name).toBe("probing");
    if (probing === null) return;
    expect(nextBreaker(probing, { type: "ask", now: 200 }, settings)).toBeNull();
    expect(nextBreaker(probing, { type: "overtaken", now: 200 }, settings)).toMatchObject({ until: 200 });
    expect(nextBreaker(probing, { type: "failed", now: 200, cause }, settings)).toMatchObject({ until: 300 });
    expect(nextBreaker(probing, { type: "succeeded" }, settings)).toEqual(LAUNCHES_OPEN);
  });

  it("does not suspend launches for longer because the time of day was set back", () => {
    const settings = { launchFailuresMax: 1, launchesSuspendedMs: 100 };
    const cause = { code: "x", message: "y" };
    const down = nextBreaker(LAUNCHES_OPEN, { type: "failed", now: 10_000, cause }, settings);
    expect(down && nextBreaker(down, { type: "ask", now: 5_000 }, settings)?.name).toBe("probing");
  });

  it("lets owners take turns, whoever has more in the line", () => {
    const line = new FairLine<string>();
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
  it("remove what is past its TTL, though busy, and say so", async () => {
    const { engine } = await world();
    await engine.sandboxes.create({ name: "old", lifecycle: { ttlMs: 1_000 } }, { wait: true, signal });
    await engine.execs.start("old", { id: "a", argv: ["sleep"] }, { signal });
    await eventually(async () => expect(await codeOf(engine.sandboxes.get("old"))).toBe("sandbox_not_found"));
    expect(await engine.execs.get("a")).toMatchObject({ status: "cancelled" });
    await eventually(async () => {
      const { items } = await engine.events({ limit: 100, types: ["sweep.done"] });
      expect(items[0]?.data).toMatchObject({ items: [{ rule: "past_ttl", action: "removed" }] });
    });
    const { sweeps } = await engine.stats();
    expect(sweeps.map(({ layer }) => layer)).toEqual(["stale", "age", "pressure", "reconcile"]);
    expect(sweeps.reduce((sum, { removed }) => sum + removed, 0)).toBeGreaterThan(0);
  });

  it("remove what nobody has used for its idle TTL, after an exec under way has ended, also after a restart", async () => {
    const { engine, restart } = await world();
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
    // The end of what ran is use: nobody's output goes the moment that it is there.
    expect(items).toEqual([]);
    await eventually(() => isGone("busy", next));
  });

  it("by order say what would go, and take the disposable only in an emergency and when idle", async () => {
    const { engine } = await world({ sweepPressureMs: 1e9 });
    const make = (name: string) =>
      engine.sandboxes.create({ name, lifecycle: { disposable: true } }, { wait: true, signal });
    await make("idle");
    await make("busy");
    await engine.execs.start("busy", { argv: ["sleep"] }, { signal });
    const dry = await engine.cleanup({ dryRun: true, emergency: true });
    const message = "an emergency cleanup was ordered, and it was created disposable";
    expect(dry.items).toMatchObject([{ rule: "disposable", action: "would_remove", message }]);
    expect(dry.layers).toEqual(["stale", "age", "pressure"]);
    expect((await engine.cleanup({ dryRun: false, emergency: false })).removed).toBe(0);
    const done = await engine.cleanup({ dryRun: false, emergency: true });
    expect(done.items).toMatchObject([{ rule: "disposable", action: "removed", message }]);
    expect(done.layers).toContain("reconcile");
    expect((await engine.sandboxes.get("busy")).status).toBe("ready");
    expect(await codeOf(engine.sandboxes.get("idle"))).toBe("sandbox_not_found");
  });

  it("by order of an emergency put to standby what is idle, and only then remove", async () => {
    const { engine, driver } = await world({ sweepPressureMs: 1e9, pressureIdleMs: 0 });
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
      { rule: "idle", action: "put_to_standby", message: expect.stringContaining("was ordered") },
      { rule: "disposable", action: "removed" },
    ]);
    expect((await engine.sandboxes.get("idle")).status).toBe("standby");
    expect((await engine.sandboxes.get("busy")).status).toBe("ready");
    expect(driver.instances.get(idle.id as SandboxId)?.alive).toBe(false);
    const { exec } = await engine.execs.start("idle", { argv: ["exit", "4"] }, { signal });
    expect(await engine.execs.wait(exec.id, { waitMs: 5_000, signal })).toMatchObject({ exitCode: 4 });
  });

  it("put to standby by themselves where memory is short, one after the other until it is not, and never for disk", async () => {
    const { engine, driver, create } = await world({
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

  it("go on with the rest when one can't be put to standby, and leave that one alone for a while", async () => {
    const { engine, driver, create } = await world({ sweepPressureMs: 1e9, pressureIdleMs: 0 });
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

  it("put nobody to standby who is used before the turn comes", async () => {
    const { engine, driver, create } = await world({
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

  it("leave a disposable one alone that is used before its turn comes", async () => {
    const { engine, driver } = await world({ sweepPressureMs: 1e9, maintainEveryMs: 1e9 });
    await engine.sandboxes.create({ name: "used", lifecycle: { disposable: true } }, { wait: true, signal });
    driver.diskFreeBytes = 10;
    let measured = 0;
    driver.faults.capacity = async () => {
      measured += 1;
      // The first tells that the host is short; before the second is answered somebody comes.
      if (measured === 2) await engine.execs.start("used", { argv: ["sleep"] }, { signal });
    };
    expect((await engine.cleanup({ dryRun: false, emergency: false })).items).toEqual([]);
    expect(measured).toBeGreaterThan(1);
    expect((await engine.sandboxes.get("used")).status).toBe("ready");
  });

  it("that are ordered twice at the same time are one", async () => {
    const { engine } = await world();
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

  it("go on with the rest when one item can't be removed", async () => {
    const { engine, store } = await world({ maintainEveryMs: 1e9, sweepAgeMs: 1e9, sweepPressureMs: 1e9 });
    for (const name of ["one", "two"])
      await engine.sandboxes.create({ name, lifecycle: { ttlMs: 1_000 } }, { wait: true, signal });
    await new Promise((resolve) => setTimeout(resolve, 1_100));
    const commit = store.commit.bind(store);
    let refused = "";
    store.commit = (order) => {
      const [change] = order.changes;
      const isDelete = change?.kind === "sandbox.update" && change.record.phase.name === "deleting";
      if (!isDelete || (refused !== "" && refused !== change.record.id)) return commit(order);
      refused = change.record.id;
      return Promise.reject(new Error("no space"));
    };
    const report = await engine.cleanup({ dryRun: false, emergency: false });
    expect(report).toMatchObject({ removed: 1, failed: 1 });
  });
});

describe("an audit", () => {
  it("finds what no record owns, and says when it acts", async () => {
    const { driver, engine } = await world({ orphanGraceMs: 1e9 });
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

  it("ends processes of a sandbox that should have none", async () => {
    const { driver, engine, create } = await world();
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

  it("concludes nothing from what it can't see, and removes nothing then", async () => {
    const { driver, engine, create } = await world();
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
    const { driver, engine, create } = await world();
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
  it("is left alone, named as pending cleanup, and goes by an explicit delete", async () => {
    await using directory = await temporaryDirectory();
    const path = join(directory.path, "holdfast.db");
    const { engine, create, driver, restart } = await world({}, path);
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

  it("keeps its execs without an outcome until its delete, which says so where it fails", async () => {
    await using directory = await temporaryDirectory();
    const path = join(directory.path, "holdfast.db");
    const { engine, create, driver, restart } = await world({}, path);
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

describe("memory that is lost", () => {
  const cold = { name: "one", lifecycle: { onMemoryLoss: "cold-start" } } as const;

  it("is followed by a start on the same files where the policy says so, with its execs ended as lost", async () => {
    const { driver, engine } = await world();
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

  it("leaves whoever follows an exec's output waiting for its end, and lets others be served meanwhile", async () => {
    const { driver, engine } = await world();
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

  it("while others can't be launched is mended when launches are tried again", async () => {
    const { driver, engine, create } = await world({ launchFailuresMax: 1, launchesSuspendedMs: 200 });
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

  it("too often within a while ends in failed, with everything kept", async () => {
    const { driver, engine } = await world({ restartsMax: 1 });
    const { sandbox } = await engine.sandboxes.create(cold, { wait: true, signal });
    const id = sandbox.id as SandboxId;
    driver.instances.get(id)?.die();
    await eventually(async () => expect((await engine.sandboxes.get("one")).generation).toBe(2));
    await eventually(async () => expect((await engine.sandboxes.get("one")).status).toBe("ready"));
    driver.instances.get(id)?.die();
    await eventually(async () => expect((await engine.sandboxes.get("one")).status).toBe("failed"));
    expect(driver.directories.has(id)).toBe(true);
  });

  it("by a reboot is told as such, and each sandbox follows its policy", async () => {
    const { driver, engine, create, restart } = await world();
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

  it("and a restart that fails keep the files and the name", async () => {
    const { driver, engine } = await world();
    const { sandbox } = await engine.sandboxes.create(cold, { wait: true, signal });
    driver.faults.launch = () => Promise.reject(new Error("no"));
    driver.instances.get(sandbox.id as SandboxId)?.die();
    await eventually(async () => expect((await engine.sandboxes.get("one")).status).toBe("failed"));
    await eventually(async () => expect((await engine.sandboxes.get("one")).lease.state).toBe("none"));
    expect(driver.directories.has(sandbox.id as SandboxId)).toBe(true);
  });
});

describe("a disk that runs out", () => {
  it("freezes the one that writes fastest, names it, and thaws it when there is room again", async () => {
    const { driver, engine, create } = await world({ diskGuardEveryMs: 30, diskFreezeBytes: 500_000 });
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

  it("does not keep the filler from being deleted", async () => {
    const { driver, engine, create } = await world({ diskGuardEveryMs: 30, diskFreezeBytes: 500_000 });
    const { sandbox } = await create("filler");
    driver.writes.set(sandbox.id as SandboxId, 50_000);
    driver.diskFreeBytes = 10;
    await eventually(() => expect(driver.frozen.size).toBe(1));
    expect((await remove(engine, "filler")).status).toBe("terminated");
  });
});

describe("a limit on steps", () => {
  it("is counted durably and refuses what goes beyond it", async () => {
    const { engine, driver, restart } = await world();
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
});
