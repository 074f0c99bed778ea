import type { Driver, EngineApi, Store } from "@holdfast/engine";
import { Counter, collectDefaultMetrics, Gauge, Histogram, Registry } from "prom-client";

const HTTP_BUCKETS = [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1, 5, 30, 240];
const EXEC_BUCKETS = [0.001, 0.0025, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 30, 60, 300, 1800, 3600];
const LAUNCH_BUCKETS = [0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1, 2.5, 5, 15, 60];

/**
 * The server's figures. Gauges are read from the engine when they are asked for; durations are taken where the thing
 * itself happens: an exec's when its end is stored, a launch's around the driver.
 */
export class Metrics {
  readonly registry = new Registry();
  readonly #http = this.#histogram("http_request_seconds", "HTTP requests", HTTP_BUCKETS, [
    "method",
    "route",
    "status",
  ]);
  readonly #execs = this.#histogram("exec_seconds", "execs from start to end, by outcome", EXEC_BUCKETS, [
    "status",
  ]);
  readonly #launches = this.#histogram("launch_seconds", "launches of instances", LAUNCH_BUCKETS, [
    "outcome",
  ]);
  readonly #sandboxes = this.#gauge("sandboxes", "sandboxes by status", ["status"]);
  readonly #links = this.#gauge("links", "links to keepers", ["state"]);
  readonly #orphans = this.#gauge("orphans", "things that carry our marker and have no record");
  readonly #running = this.#gauge("execs_running", "execs under way");
  readonly #age = this.#gauge("observation_age_seconds", "time since the last pass over all instances");
  readonly #totals = this.#gauge("total", "stored counters that never go down", ["what"]);
  readonly #errors = new Counter({
    name: "holdfast_http_errors_total",
    help: "error responses by code",
    labelNames: ["code"],
    registers: [this.registry],
  });

  constructor(options: { process: boolean } = { process: true }) {
    if (options.process) collectDefaultMetrics({ register: this.registry });
  }

  #histogram<Label extends string>(name: string, help: string, buckets: number[], labelNames: Label[]) {
    return new Histogram({ name: `holdfast_${name}`, help, buckets, labelNames, registers: [this.registry] });
  }

  #gauge<Label extends string>(name: string, help: string, labelNames: Label[] = []) {
    return new Gauge({ name: `holdfast_${name}`, help, labelNames, registers: [this.registry] });
  }

  request(method: string, route: string, status: number, ms: number): void {
    this.#http.observe({ method, route, status }, ms / 1000);
  }

  failure(code: string): void {
    this.#errors.inc({ code });
  }

  async render(engine: EngineApi): Promise<string> {
    const stats = await engine.stats();
    for (const [status, count] of Object.entries(stats.sandboxes)) this.#sandboxes.set({ status }, count);
    for (const [what, count] of Object.entries(stats.totals)) this.#totals.set({ what }, count);
    this.#links.set({ state: "up" }, stats.links.up);
    this.#links.set({ state: "down" }, stats.links.down);
    this.#orphans.set(stats.orphans);
    this.#running.set(stats.execsRunning);
    const seen = stats.lastObservationAt === null ? Number.NaN : Date.parse(stats.lastObservationAt);
    this.#age.set((Date.parse(stats.at) - seen) / 1000);
    return this.registry.metrics();
  }

  /** The store, with the duration of every exec taken from the commit that ends it. */
  watchStore<S extends Store>(store: S): S {
    return withMethod(store, "commit", async (commit) => {
      await store.commit(commit);
      for (const change of commit.changes) {
        if (change.kind !== "exec.end" || change.record.startedAt === null) continue;
        const { status, startedAt, endedAt } = change.record;
        this.#execs.observe({ status }, Math.max(0, (endedAt ?? startedAt) - startedAt) / 1000);
      }
    });
  }

  /** The driver, with every launch timed. */
  watchDriver(driver: Driver): Driver {
    return withMethod(driver, "launch", async (order, signal) => {
      const startedAt = performance.now();
      let outcome = "failed";
      try {
        const instance = await driver.launch(order, signal);
        outcome = "launched";
        return instance;
      } finally {
        this.#launches.observe({ outcome }, (performance.now() - startedAt) / 1000);
      }
    });
  }
}

/** The same object with one method replaced. The others stay bound to the object itself. */
function withMethod<Target extends object, Name extends keyof Target>(
  target: Target,
  name: Name,
  replacement: Target[Name],
): Target {
  const bound = new Map<PropertyKey, unknown>([[name, replacement]]);
  return new Proxy(target, {
    get(_, key) {
      if (bound.has(key)) return bound.get(key);
      const value: unknown = Reflect.get(target, key, target);
      if (typeof value !== "function") return value;
      bound.set(key, value.bind(target));
      return bound.get(key);
    },
  });
}
