import { type LayerHealth, STATUSES, type Stats } from "@holdfast/contract";
import type { Commit, Driver, EngineApi, Store } from "@holdfast/engine";
import { expect, test } from "vitest";
import { Metrics } from "./metrics.ts";
import { aStats } from "./testing/double.ts";

const aLayer: LayerHealth = {
  layer: "stale",
  everyMs: 1_000,
  lastAt: "2025-01-01T00:00:02.000Z",
  overdue: true,
  runs: 9,
  failures: 3,
  removed: 40,
  lastError: "no",
};
const stats = aStats({
  at: "2025-01-01T00:00:10.000Z",
  sandboxes: Object.fromEntries(STATUSES.map((status, index) => [status, index])) as Stats["sandboxes"],
  totals: { created: 5, terminated: 4, failed: 1, execsStarted: 9, execsEnded: 8 },
  execsRunning: 1,
  execsQueued: 7,
  links: { up: 2, down: 1, lost: 6 },
  readers: 4,
  readersCut: { wedged: 8, expired: 2 },
  orphans: 3,
  lastObservationAt: "2025-01-01T00:00:06.000Z",
  lastAuditAt: "2025-01-01T00:00:00.000Z",
  sweeps: [aLayer, { ...aLayer, layer: "age", lastAt: null, overdue: false, failures: 0, removed: 0 }],
  launches: { state: "suspended", waiting: 12, failuresInARow: 5 },
  capacity: { diskFreeBytes: 5e9, diskTotalBytes: 1e10, memoryFreeBytes: 6e9, memoryTotalBytes: 8e9 },
});
const engine = { stats: async () => stats } as EngineApi;

test("gauges show what the engine says when asked", async () => {
  const text = await new Metrics({ process: false }).render(engine);
  expect(text).toContain('holdfast_sandboxes{status="ready"} 2');
  expect(text).toContain('holdfast_links{state="down"} 1');
  expect(text).toContain("holdfast_links_lost_total 6");
  expect(text).toContain("holdfast_execs_queued 7");
  expect(text).toContain("holdfast_readers 4");
  expect(text).toContain('holdfast_readers_cut_total{why="wedged"} 8');
  expect(text).toContain('holdfast_readers_cut_total{why="expired"} 2');
  expect(text).toContain("holdfast_orphans 3");
  expect(text).toContain("holdfast_observation_age_seconds 4");
  expect(text).toContain('holdfast_total{what="created"} 5');
});

test("cleaning that has stopped, or fails, is seen", async () => {
  const text = await new Metrics({ process: false }).render(engine);
  expect(text).toContain("holdfast_audit_age_seconds 10");
  expect(text).toContain('holdfast_sweep_age_seconds{layer="stale"} 8');
  expect(text).toContain('holdfast_sweep_age_seconds{layer="age"} Nan');
  expect(text).toContain('holdfast_sweep_overdue{layer="stale"} 1');
  expect(text).toContain('holdfast_sweep_overdue{layer="age"} 0');
  expect(text).toContain('holdfast_sweep_failures_total{layer="stale"} 3');
  expect(text).toContain('holdfast_sweep_removed_total{layer="stale"} 40');
});

test("whether there is room for more, and launches are let through, is seen", async () => {
  const metrics = new Metrics({ process: false });
  const text = await metrics.render(engine);
  expect(text).toContain("holdfast_launches_suspended 1");
  expect(text).toContain("holdfast_launches_waiting 12");
  expect(text).toContain("holdfast_disk_free_bytes 5000000000");
  expect(text).toContain("holdfast_memory_free_bytes 6000000000");
  const unmeasured = await metrics.render({ stats: async () => aStats() } as EngineApi);
  expect(unmeasured).toContain("holdfast_launches_suspended 0");
  expect(unmeasured).toContain("holdfast_disk_free_bytes Nan");
  expect(unmeasured).toContain("holdfast_audit_age_seconds Nan");
});

test("what the engine has counted is counted once, however often the figures are read", async () => {
  const metrics = new Metrics({ process: false });
  await metrics.render(engine);
  const text = await metrics.render(engine);
  expect(text).toContain("holdfast_links_lost_total 6");
  expect(text).toContain('holdfast_sweep_failures_total{layer="stale"} 3');
});

test("an exec's duration is counted when its end was stored, and not when that failed", async () => {
  class Recorder {
    #fails = true;
    async commit(): Promise<void> {
      if (this.#fails) {
        this.#fails = false;
        throw new Error("disk full");
      }
    }
  }
  const metrics = new Metrics({ process: false });
  const store = metrics.watchStore(new Recorder() as unknown as Store);
  const record = { status: "exited", startedAt: 1_000, endedAt: 3_000 };
  const commit = { changes: [{ kind: "exec.end", record }] } as unknown as Commit;
  await expect(store.commit(commit)).rejects.toThrow("disk full");
  await store.commit(commit);
  const text = await metrics.render(engine);
  expect(text).toContain('holdfast_exec_seconds_count{status="exited"} 1');
  expect(text).toContain('holdfast_exec_seconds_sum{status="exited"} 2');
});

test("launches are timed by outcome, and the driver's other verbs stay its own", async () => {
  class Launcher {
    readonly name = "test";
    #launched = 0;
    async launch(): Promise<void> {
      this.#launched += 1;
      if (this.#launched > 1) throw new Error("no");
    }
    async capacity(): Promise<number> {
      return this.#launched;
    }
  }
  const metrics = new Metrics({ process: false });
  const driver = metrics.watchDriver(new Launcher() as unknown as Driver);
  const signal = AbortSignal.timeout(1_000);
  await driver.launch({} as never, signal);
  await expect(driver.launch({} as never, signal)).rejects.toThrow("no");
  expect(await driver.capacity(signal)).toBe(2);
  expect(driver.name).toBe("test");
  const text = await metrics.render(engine);
  expect(text).toContain('holdfast_launch_seconds_count{outcome="launched"} 1');
  expect(text).toContain('holdfast_launch_seconds_count{outcome="failed"} 1');
});
