import { STATUSES, type Stats } from "@holdfast/contract";
import type { Commit, Driver, EngineApi, Store } from "@holdfast/engine";
import { expect, test } from "vitest";
import { Metrics } from "./metrics.ts";

const stats: Stats = {
  at: "2025-01-01T00:00:10.000Z",
  sandboxes: Object.fromEntries(STATUSES.map((status, index) => [status, index])) as Stats["sandboxes"],
  totals: { created: 5, terminated: 4, failed: 1, execsStarted: 9, execsEnded: 8 },
  execsRunning: 1,
  links: { up: 2, down: 1 },
  orphans: 3,
  lastObservationAt: "2025-01-01T00:00:06.000Z",
};
const engine = { stats: async () => stats } as EngineApi;

test("gauges show what the engine says when asked", async () => {
  const text = await new Metrics({ process: false }).render(engine);
  expect(text).toContain('holdfast_sandboxes{status="ready"} 2');
  expect(text).toContain('holdfast_links{state="down"} 1');
  expect(text).toContain("holdfast_orphans 3");
  expect(text).toContain("holdfast_observation_age_seconds 4");
  expect(text).toContain('holdfast_total{what="created"} 5');
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
