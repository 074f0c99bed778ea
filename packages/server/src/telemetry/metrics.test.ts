import { type AlertKind, type LayerHealth, STATUSES, type Stats } from "@holdfast/contract";
import type { Commit, Driver, EngineApi, Reading, Store } from "@holdfast/engine";
import { expect, test } from "vitest";
import { aStats, someFigures } from "../testing/double.ts";
import { Metrics } from "./metrics.ts";

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
const engineOf = (stats: Stats, figures = someFigures()) =>
  ({
    stats: async () => stats,
    alerts: { figures: async () => figures },
    ports: { open: 13 },
  }) as unknown as EngineApi;
const engine = engineOf(stats);

test("gauges show the engine's values at the time of the scrape", async () => {
  const text = await new Metrics({ process: false }).render(engine);
  expect(text).toContain('holdfast_sandboxes{status="ready"} 2');
  expect(text).toContain('holdfast_links{state="down"} 1');
  expect(text).toContain("holdfast_links_lost_total 6");
  expect(text).toContain("holdfast_execs_queued 7");
  expect(text).toContain("holdfast_readers 4");
  expect(text).toContain('holdfast_readers_cut_total{why="wedged"} 8');
  expect(text).toContain('holdfast_readers_cut_total{why="expired"} 2');
  expect(text).toContain("holdfast_orphans 3");
  expect(text).toContain("holdfast_port_connections 13");
  expect(text).toContain("holdfast_observation_age_seconds 4");
  expect(text).toContain('holdfast_total{what="created"} 5');
});

test("stopped or failing cleanup is visible", async () => {
  const text = await new Metrics({ process: false }).render(engine);
  expect(text).toContain("holdfast_audit_age_seconds 10");
  expect(text).toContain('holdfast_sweep_age_seconds{layer="stale"} 8');
  expect(text).toContain('holdfast_sweep_age_seconds{layer="age"} Nan');
  expect(text).toContain('holdfast_sweep_overdue{layer="stale"} 1');
  expect(text).toContain('holdfast_sweep_overdue{layer="age"} 0');
  expect(text).toContain('holdfast_sweep_failures_total{layer="stale"} 3');
  expect(text).toContain('holdfast_sweep_removed_total{layer="stale"} 40');
});

test("free capacity and suspended launches are visible", async () => {
  const metrics = new Metrics({ process: false });
  const text = await metrics.render(engine);
  expect(text).toContain("holdfast_launches_suspended 1");
  expect(text).toContain("holdfast_launches_waiting 12");
  expect(text).toContain("holdfast_disk_free_bytes 5000000000");
  expect(text).toContain("holdfast_memory_free_bytes 6000000000");
  const unmeasured = await metrics.render(engineOf(aStats()));
  expect(unmeasured).toContain("holdfast_launches_suspended 0");
  expect(unmeasured).toContain("holdfast_disk_free_bytes Nan");
  expect(unmeasured).toContain("holdfast_audit_age_seconds Nan");
});

test("engine counters are exported once, however often they are scraped", async () => {
  const metrics = new Metrics({ process: false });
  await metrics.render(engine);
  const text = await metrics.render(engine);
  expect(text).toContain("holdfast_links_lost_total 6");
  expect(text).toContain('holdfast_sweep_failures_total{layer="stale"} 3');
});

test("alerts, their readings and deliveries are visible", async () => {
  const about = (kind: AlertKind, subject: string | null, value: number | null): Reading => ({
    kind,
    subject,
    sandboxId: null,
    value,
    message: "",
  });
  const figures = someFigures({
    evaluatedAt: Date.parse(stats.at) - 3_000,
    firing: [{ kind: "stuck", severity: "warning", count: 2 }],
    deliveries: { pending: 1, delivered: 7, dead: 3 },
    readings: {
      timeout_rate: [],
      too_many_active: [about("too_many_active", null, 21)],
      stuck: [about("stuck", "sbx_1", 700_000), about("stuck", "sbx_2", 900_000)],
      lease_exhausted: [about("lease_exhausted", "sbx_1", 1), about("lease_exhausted", "sbx_2", 1)],
      cleanup_failing: [about("cleanup_failing", "age", 4)],
      capacity: [about("capacity", "disk", 81.5), about("capacity", "memory", null)],
      leak: null,
    },
  });
  const text = await new Metrics({ process: false }).render(engineOf(stats, figures));
  expect(text).toContain('holdfast_alerts{kind="stuck",severity="warning"} 2');
  expect(text).toContain('holdfast_alerts{kind="leak",severity="critical"} 0');
  expect(text).toContain("holdfast_alerts_evaluation_age_seconds 3");
  expect(text).toContain('holdfast_deliveries{state="dead"} 3');
  expect(text).toContain("holdfast_exec_timeout_percent Nan");
  expect(text).toContain("holdfast_sandboxes_active 21");
  expect(text).toContain("holdfast_stuck_seconds_max 900");
  expect(text).toContain("holdfast_leases_exhausted 2");
  expect(text).toContain('holdfast_sweep_failed_in_a_row{layer="age"} 4');
  expect(text).toContain('holdfast_sweep_failed_in_a_row{layer="stale"} 0');
  expect(text).toContain('holdfast_capacity_used_percent{what="disk"} 81.5');
  // A value that could not be read is not exported with its old value.
  expect(text).toContain('holdfast_capacity_used_percent{what="memory"} Nan');
  expect(text).toContain("holdfast_leaks Nan");
});

test("ended execs are counted by outcome, starting at zero", async () => {
  const metrics = new Metrics({ process: false });
  const store = metrics.watchStore({ commit: async () => undefined } as unknown as Store);
  const record = { status: "timed_out", startedAt: null, endedAt: 3_000 };
  await store.commit({ changes: [{ kind: "exec.end", record }] } as unknown as Commit);
  const text = await metrics.render(engine);
  expect(text).toContain('holdfast_execs_ended_total{status="timed_out"} 1');
  expect(text).toContain('holdfast_execs_ended_total{status="exited"} 0');
});

test("an exec's duration is counted when its end was stored, and not if that failed", async () => {
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

test("launches are timed by outcome, and the driver's other methods are unchanged", async () => {
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
