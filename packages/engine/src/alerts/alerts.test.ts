import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { DatabaseSync } from "node:sqlite";
import { type ExecId, newExecId, type SandboxId } from "@holdfast/contract";
import { openStore } from "@holdfast/store";
import { describe, expect, it, onTestFinished } from "vitest";
import { inWords } from "../lib/format.ts";
import { systemIds } from "../lib/ids.ts";
import type { EngineApi } from "../ports/api.ts";
import type { Change } from "../ports/index.ts";
import type { ExecRecord } from "../ports/records.ts";
import { ALERT_SOON, alarmed, clears, fires, firing } from "../testing/alerting-engine.ts";
import { queuedSandbox } from "../testing/samples.ts";
import { eventually, never, remove, signal, testEngine } from "../testing/test-engine.ts";

const eventTypes = async (engine: EngineApi, key: string) =>
  (await engine.events({ types: ["alert.fired", "alert.cleared"], limit: 1_000 })).items
    .filter(({ data }) => data.key === key)
    .map(({ type }) => type);

const endedExec = (sandboxId: SandboxId, over: Partial<ExecRecord> = {}): ExecRecord => ({
  id: newExecId(),
  sandboxId,
  generation: 1,
  spec: {
    argv: ["true"],
    env: {},
    cwd: "/",
    user: "",
    timeoutMs: 5,
    stdin: null,
    tty: null,
    keepAwake: true,
    onWake: null,
  },
  digest: "d",
  status: "exited",
  exitCode: 0,
  signal: null,
  cause: null,
  dispatched: "yes",
  outputEnd: 0,
  createdAt: Date.now(),
  startedAt: Date.now(),
  endedAt: Date.now(),
  ...over,
});

async function aDirectory(): Promise<string> {
  const directory = await mkdtemp(join(tmpdir(), "holdfast-alerts-"));
  onTestFinished(() => rm(directory, { recursive: true }));
  return directory;
}

describe("alerts", () => {
  it("are recorded as events and listed with their values, also for a while after they cleared", async () => {
    const { driver, engine } = await testEngine(ALERT_SOON);
    await eventually(async () =>
      expect((await engine.alerts.list({ cleared: false })).evaluatedAt).not.toBeNull(),
    );
    expect(await firing(engine)).toEqual([]);
    driver.diskFreeBytes = 2_000_000;
    const alert = await fires(engine, "capacity:disk");
    expect(alert).toMatchObject({
      kind: "capacity",
      severity: "warning",
      state: "firing",
      sandboxId: null,
      unit: "percent",
      threshold: 80,
      clearBelow: 75,
      clearedAt: null,
    });
    expect(alert.value).toBeGreaterThan(80);
    expect(alert.message).toBe(`${alert.value} % of the disk is in use.`);
    driver.diskFreeBytes = 1 << 30;
    await clears(engine, "capacity:disk");
    const { items } = await engine.alerts.list({ cleared: true });
    expect(items).toMatchObject([{ id: alert.id, state: "cleared", firedAt: alert.firedAt }]);
    expect(items[0]?.value).toBeLessThanOrEqual(75);
    expect(await eventTypes(engine, "capacity:disk")).toEqual(["alert.fired", "alert.cleared"]);
  });

  it("show the current value, and keep the value at which they fired in the store", async () => {
    const { driver, engine, store } = await testEngine(ALERT_SOON);
    driver.diskFreeBytes = 2_000_000;
    const { value } = await fires(engine, "capacity:disk");
    driver.diskFreeBytes = 1_000_001;
    await eventually(async () => {
      const [now] = (await engine.alerts.list({ cleared: false })).items;
      expect(now?.value).toBeGreaterThanOrEqual(value);
    });
    expect((await store.alerts({ state: "firing", limit: 9 }))[0]?.value).toBe(value);
  });

  it("survive a restart without being reported again, and clear afterwards if their cause is gone", async () => {
    const { driver, engine, create, restart, receiver } = await alarmed();
    const { sandbox } = await create("one");
    driver.faults.stop = () => Promise.reject(new Error("busy"));
    void remove(engine, "one", 10);
    const key = `lease_exhausted:${sandbox.id}`;
    const alert = await fires(engine, key);
    expect(alert).toMatchObject({ severity: "critical", sandboxId: sandbox.id });
    expect(alert.message).toContain("busy");
    await engine.stop();
    const next = await restart();
    expect(await fires(next, key)).toMatchObject({ id: alert.id, firedAt: alert.firedAt });
    expect(await eventTypes(next, key)).toEqual(["alert.fired"]);
    await next.stop();
    driver.faults = {};
    const last = await restart();
    await clears(last, key);
    expect(await eventTypes(last, key)).toEqual(["alert.fired", "alert.cleared"]);
    await eventually(() => expect(receiver.about(key)).toEqual(["firing", "cleared"]));
  });

  it("that could not be stored have not fired, and fire once the store accepts them", async () => {
    const { driver, engine, store, receiver } = await alarmed();
    const commit = store.commit.bind(store);
    let refusals = 0;
    store.commit = async (given) => {
      if (refusals < 3 && given.changes.some(({ kind }) => kind === "alert.fire")) {
        refusals += 1;
        throw new Error("disk I/O error");
      }
      return commit(given);
    };
    driver.diskFreeBytes = 2_000_000;
    await eventually(() => expect(refusals).toBe(3));
    await fires(engine, "capacity:disk");
    await eventually(() => expect(receiver.about("capacity:disk")).toEqual(["firing"]));
    expect(await eventTypes(engine, "capacity:disk")).toEqual(["alert.fired"]);
  });

  it("whose value can't be read do not affect other alerts", async () => {
    const { driver, engine, store, restart } = await alarmed();
    await engine.stop();
    let asked = 0;
    store.deliveryCounts = async () => {
      asked += 1;
      throw new Error("no such table");
    };
    const next = await restart();
    driver.diskFreeBytes = 2_000_000;
    await fires(next, "capacity:disk");
    expect(asked).toBeGreaterThan(1);
    driver.faults.capacity = () => Promise.reject(new Error("no statfs"));
    await fires(next, "capacity_unmeasured");
    // The disk could not be measured, so its alert stays as it is.
    expect(await firing(next)).toContain("capacity:disk");
    driver.faults = {};
    driver.diskFreeBytes = 1 << 30;
    await clears(next, "capacity_unmeasured");
    await clears(next, "capacity:disk");
  });

  it("whose reading never finishes do not affect other alerts", async () => {
    const { driver, engine, store, restart } = await alarmed({ measureMs: 200 });
    await engine.stop();
    let asked = 0;
    store.deliveryCounts = () => {
      asked += 1;
      return never() as never;
    };
    const next = await restart();
    driver.diskFreeBytes = 2_000_000;
    await fires(next, "capacity:disk");
    expect(asked).toBeGreaterThan(1);
  });

  it("are all stored and delivered one by one when many fire at once", async () => {
    const { engine, store, receiver, restart } = await alarmed();
    await engine.stop();
    const kept = { name: "failed", cause: { code: "x", message: "y" }, keptUntil: Date.now() + 1e9 } as const;
    const records = Array.from({ length: 150 }, (_, index) =>
      queuedSandbox({
        name: `box-${index}`,
        nameHeld: false,
        phase: kept,
        lease: { state: "quarantined", raw: "{" },
      }),
    );
    await store.commit({ changes: records.map((record): Change => ({ kind: "sandbox.insert", record })) });
    const next = await restart();
    await eventually(async () => expect(await firing(next)).toHaveLength(150));
    await eventually(() => expect(receiver.taken).toHaveLength(150));
    expect(new Set(receiver.taken.map(({ id }) => id)).size).toBe(150);
  });
});

describe("an alert fires and clears", () => {
  it("for orphaned resources, until they are removed", async () => {
    const { driver, engine } = await testEngine({ ...ALERT_SOON, orphanGraceMs: 1_000 });
    const stray = systemIds.sandbox();
    driver.directories.add(stray);
    expect(await fires(engine, "leak")).toMatchObject({ severity: "critical", value: 1 });
    await clears(engine, "leak");
    expect(driver.directories.has(stray)).toBe(false);
  });

  it("for a sandbox that stays in a transient status too long", async () => {
    const { driver, engine, create } = await testEngine({ ...ALERT_SOON, alertStuckMs: 200 });
    const { sandbox } = await create("one");
    const instance = driver.instances.get(sandbox.id as SandboxId);
    if (instance) instance.root = false;
    await eventually(async () => expect((await engine.sandboxes.get("one")).status).toBe("degraded"));
    const key = `stuck:${sandbox.id}`;
    const alert = await fires(engine, key);
    expect(alert).toMatchObject({ sandboxId: sandbox.id, unit: "ms", threshold: 200 });
    expect(alert.value).toBeGreaterThan(200);
    expect(alert.message).toMatch(/^one has been degraded for .+: /);
    if (instance) instance.root = true;
    await clears(engine, key);
  });

  it("for a stuck sandbox once, across a restart of the server", async () => {
    const { driver, engine, create, restart } = await testEngine({ ...ALERT_SOON, alertStuckMs: 300 });
    const { sandbox } = await create("one");
    const instance = driver.instances.get(sandbox.id as SandboxId);
    if (instance) instance.root = false;
    const key = `stuck:${sandbox.id}`;
    const { id } = await fires(engine, key);
    await engine.stop();
    const next = await restart();
    const evaluatedAt = async () => (await next.alerts.list({ cleared: false })).evaluatedAt;
    const first = await eventually(async () => (await evaluatedAt()) ?? Promise.reject(new Error("not yet")));
    await eventually(async () =>
      expect(Date.parse((await evaluatedAt()) ?? first) - Date.parse(first)).toBeGreaterThan(250),
    );
    expect((await next.alerts.list({ cleared: true })).items).toMatchObject([{ id, state: "firing" }]);
  });

  it("for too many timeouts, in total and of one sandbox, also after a restart", async () => {
    const numbers = { ...ALERT_SOON, alertMinExecs: 4, alertRepeatedTimeouts: 1 };
    const { driver, engine, create, restart } = await testEngine(numbers);
    const { sandbox } = await create("one");
    const id = sandbox.id as SandboxId;
    const run = async (state: "timed_out" | "exited") => {
      const exec = await engine.execs.start("one", { argv: ["wait"] }, { signal });
      driver.instances.get(id)?.end(exec.exec.id as ExecId, 0, "", state);
      await engine.execs.wait(exec.exec.id, { waitMs: 5_000, signal });
    };
    for (const state of ["timed_out", "timed_out", "exited"] as const) await run(state);
    await fires(engine, `repeated_timeouts:${id}`);
    // Three execs are too few for a rate.
    expect(await firing(engine)).not.toContain("timeout_rate");
    await run("exited");
    expect(await fires(engine, "timeout_rate")).toMatchObject({ value: 50, threshold: 5, target: 2 });
    await engine.stop();
    const next = await restart();
    await eventually(async () => {
      const { readings } = await next.alerts.figures();
      expect(readings.timeout_rate).toMatchObject([{ value: 50 }]);
      expect(readings.repeated_timeouts).toMatchObject([{ value: 2, sandboxId: id }]);
    });
    expect(await eventTypes(next, "timeout_rate")).toEqual(["alert.fired"]);
  });

  it("for timeouts, until they are outside the window", async () => {
    const { engine, store, restart } = await testEngine({
      ...ALERT_SOON,
      alertMinExecs: 1,
      alertWindowMs: 1_500,
    });
    await engine.stop();
    const owner = queuedSandbox({ phase: { name: "gone", cause: null }, nameHeld: false, endedAt: 1 });
    const record = endedExec(owner.id, { status: "timed_out", exitCode: null });
    await store.commit({
      changes: [
        { kind: "sandbox.insert", record: owner },
        { kind: "exec.insert", record },
      ],
    });
    const next = await restart();
    await fires(next, "timeout_rate");
    await clears(next, "timeout_rate");
  });

  it("for too many active sandboxes, and for used-up capacity", async () => {
    const { engine, create } = await testEngine({
      ...ALERT_SOON,
      ...{ alertActive: 1, clearActive: 0, maxSandboxes: 2, alertRunningMs: 150 },
      ...{ alertEscalationActive: 1, clearEscalationActive: 1, alertEscalationForMs: 300 },
    });
    await create("one");
    await create("two");
    expect(await fires(engine, "too_many_active")).toMatchObject({ value: 2, target: 5 });
    expect(await fires(engine, "active_escalation")).toMatchObject({ severity: "critical" });
    expect(await fires(engine, "capacity:sandboxes")).toMatchObject({ value: 100 });
    const long = await fires(engine, "running_long");
    expect(long).toMatchObject({ severity: "info", value: 2 });
    expect(long.message).toContain("one, two");
    await remove(engine, "one");
    await clears(engine, "active_escalation");
    expect(await firing(engine)).toContain("too_many_active");
    await remove(engine, "two");
    for (const key of ["too_many_active", "capacity:sandboxes", "running_long"]) await clears(engine, key);
  });

  it("for suspended launches, until one succeeds", async () => {
    const { driver, engine, create } = await testEngine({
      ...ALERT_SOON,
      launchFailuresMax: 1,
      launchesSuspendedMs: 100,
    });
    driver.faults.launch = () => Promise.reject(new Error("no runtime"));
    await create("one").catch(() => undefined);
    expect((await fires(engine, "launches_suspended")).message).toContain("no runtime");
    driver.faults = {};
    await eventually(() => create("two"));
    await clears(engine, "launches_suspended");
  });

  it("for cleaning that hangs, and for cleaning that fails", async () => {
    const { engine: first, store, restart } = await testEngine(ALERT_SOON);
    await first.stop();
    const prunable = store.prunable.bind(store);
    let state: "fails" | "hangs" | "works" = "fails";
    store.prunable = async (order) => {
      if (state === "fails") throw new Error("disk I/O error");
      await eventually(() => expect(state).toBe("works"), { timeout: 60_000 });
      return prunable(order);
    };
    const engine = await restart();
    const failing = await fires(engine, "cleanup_failing:stale");
    expect(failing.message).toContain("disk I/O error");
    state = "hangs";
    expect(await fires(engine, "cleanup_not_running:stale")).toMatchObject({ severity: "critical" });
    // Each layer has a loop of its own: the others keep running.
    const { items } = await engine.alerts.list({ cleared: false });
    expect(items.map(({ key }) => key)).not.toContain("cleanup_not_running:age");
    state = "works";
    await clears(engine, "cleanup_not_running:stale");
    await clears(engine, "cleanup_failing:stale");
  });

  it("for incomplete audits, and for overdue audits", async () => {
    const { driver, engine } = await testEngine({ ...ALERT_SOON, auditEveryMs: 60, stopAttemptMs: 1_000 });
    const list = driver.list.bind(driver);
    driver.list = () => Promise.reject(new Error("no /proc"));
    await fires(engine, "audit_incomplete");
    driver.list = () => never() as never;
    await fires(engine, "audit_overdue");
    driver.list = list;
    await clears(engine, "audit_overdue");
    await clears(engine, "audit_incomplete");
  });

  it("for overdue observations", async () => {
    const { driver, engine, create, store } = await testEngine(ALERT_SOON);
    const { sandbox } = await create("one");
    const commit = store.commit.bind(store);
    let release = () => {};
    const held = new Promise<void>((resolve) => {
      release = resolve;
    });
    // The pass that finds the instance dead can't record that, and does not finish.
    store.commit = async (given) => {
      if (given.changes.some(({ kind }) => kind === "sandbox.update")) await held;
      return commit(given);
    };
    driver.instances.get(sandbox.id as SandboxId)?.die();
    await fires(engine, "observation_overdue");
    release();
    await clears(engine, "observation_overdue");
  });

  it("for an unreadable record, until it is deleted", async () => {
    const path = join(await aDirectory(), "holdfast.db");
    const store = await openStore({ path });
    const record = queuedSandbox({ name: "bent" });
    await store.commit({ changes: [{ kind: "sandbox.insert", record }] });
    await store.close();
    const database = new DatabaseSync(path);
    database.exec("UPDATE sandboxes SET spec = '{'");
    database.close();
    const { engine } = await testEngine(ALERT_SOON, path);
    const key = `lease_quarantined:${record.id}`;
    expect(await fires(engine, key)).toMatchObject({ severity: "critical", sandboxId: record.id });
    await remove(engine, record.id).catch(() => undefined);
    await clears(engine, key);
  });
});

describe("the figures for metrics", () => {
  it("are those of the last evaluation", async () => {
    const { driver, engine } = await alarmed();
    driver.diskFreeBytes = 2_000_000;
    await fires(engine, "capacity:disk");
    await eventually(async () => {
      const { evaluatedAt, firing: counts, readings, deliveries } = await engine.alerts.figures();
      expect(evaluatedAt).not.toBeNull();
      expect(counts).toEqual([{ kind: "capacity", severity: "warning", count: 1 }]);
      expect(readings.too_many_active).toMatchObject([{ value: 0 }]);
      expect(deliveries).toEqual({ pending: 0, delivered: 1, dead: 0 });
    });
  });
});

it.each([
  [0, "0 seconds"],
  [1_000, "1 second"],
  [90_000, "90 seconds"],
  [600_000, "10 minutes"],
  [7_200_000, "2 hours"],
  [172_800_000, "2 days"],
])("formats %d ms as %s", (ms, words) => expect(inWords(ms)).toBe(words));
