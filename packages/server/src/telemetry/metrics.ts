import { type Stats, TERMINAL_EXEC_STATUSES } from "@holdfast/contract";
import type { Driver, EngineApi, Store } from "@holdfast/engine";
import { Counter, collectDefaultMetrics, Gauge, Histogram, Registry } from "prom-client";
import type { RequestMetrics } from "../ports/telemetry.ts";
import { AlertMetrics } from "./alert-metrics.ts";

const HTTP_BUCKETS = [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1, 5, 30, 240];
const EXEC_BUCKETS = [0.001, 0.0025, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 30, 60, 300, 1800, 3600];
const LAUNCH_BUCKETS = [0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1, 2.5, 5, 15, 60];

/**
 * The server's metrics. Gauges are read from the engine when they are scraped. Durations are measured where the
 * operation happens: an exec's duration when its end is stored, and a launch's duration around the driver call.
 */
export class Metrics implements RequestMetrics {
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
  readonly #orphans = this.#gauge(
    "orphans",
    "resources that carry this installation's marker and have no record",
  );
  readonly #linksLost = this.#counter("links_lost_total", "keeper links lost since the server started");
  readonly #running = this.#gauge("execs_running", "running execs");
  readonly #queued = this.#gauge("execs_queued", "queued execs");
  readonly #readers = this.#gauge("readers", "callers currently reading output");
  readonly #readersCut = this.#counter(
    "readers_cut_total",
    "output streams ended before their exec: reader stalled (wedged), or expired after streamMaxMs",
    ["why"],
  );
  readonly #attached = this.#gauge("attached_sockets", "WebSockets currently attached to execs");
  readonly #streamed = this.#counter("output_bytes_total", "bytes of output sent, by format", ["format"]);
  readonly #ports = this.#gauge("port_connections", "open connections to ports of sandboxes");
  readonly #portRequests = this.#counter(
    "port_requests_total",
    "port requests by outcome: answered, upgraded, cut (during the response), or the error code",
    ["outcome"],
  );
  readonly #age = this.#gauge("observation_age_seconds", "time since all instances were last observed");
  readonly #auditAge = this.#gauge("audit_age_seconds", "time since the last audit");
  readonly #sweepAge = this.#gauge("sweep_age_seconds", "time since a cleanup layer last ran", ["layer"]);
  readonly #sweepOverdue = this.#gauge("sweep_overdue", "1 if a cleanup layer does not run", ["layer"]);
  readonly #sweepFailures = this.#counter("sweep_failures_total", "failed runs of a cleanup layer", [
    "layer",
  ]);
  readonly #sweepRemoved = this.#counter(
    "sweep_removed_total",
    "resources and records removed by a cleanup layer",
    ["layer"],
  );
  readonly #suspended = this.#gauge(
    "launches_suspended",
    "1 while launches are suspended because they keep failing",
  );
  readonly #waiting = this.#gauge("launches_waiting", "creates waiting for a launch slot");
  readonly #diskFree = this.#gauge("disk_free_bytes", "free disk space, as last measured");
  readonly #memoryFree = this.#gauge("memory_free_bytes", "free memory of the host, as last measured");
  readonly #totals = this.#gauge("total", "stored counters that never decrease", ["what"]);
  readonly #errors = this.#counter("http_errors_total", "error responses by code", ["code"]);
  readonly #ended = this.#counter("execs_ended_total", "execs that ended, by outcome", ["status"]);
  readonly #alerts = new AlertMetrics(this.registry);

  constructor(options: { process: boolean } = { process: true }) {
    // Counters are exported as zero from the start, because a rate includes the first increment only if a zero was
    // exported before it.
    for (const status of TERMINAL_EXEC_STATUSES) this.#ended.inc({ status }, 0);
    if (options.process) collectDefaultMetrics({ register: this.registry });
  }

  #histogram<Label extends string>(name: string, help: string, buckets: number[], labelNames: Label[]) {
    return new Histogram({ name: `holdfast_${name}`, help, buckets, labelNames, registers: [this.registry] });
  }

  #gauge<Label extends string>(name: string, help: string, labelNames: Label[] = []) {
    return new Gauge({ name: `holdfast_${name}`, help, labelNames, registers: [this.registry] });
  }

  #counter<Label extends string>(name: string, help: string, labelNames: Label[] = []) {
    return new Counter({ name: `holdfast_${name}`, help, labelNames, registers: [this.registry] });
  }

  get contentType(): string {
    return this.registry.contentType;
  }

  request(method: string, route: string, status: number, ms: number): void {
    this.#http.observe({ method, route, status }, ms / 1000);
  }

  failure(code: string): void {
    this.#errors.inc({ code });
  }

  /** Bytes of output written to callers' sockets. */
  streamed(format: string, bytes: number): void {
    this.#streamed.inc({ format }, bytes);
  }

  /** Counts a port request by its outcome. */
  portRequest(outcome: string): void {
    this.#portRequests.inc({ outcome });
  }

  /**
   * Adds an attached socket to the count. The returned function removes it, and must be called when the socket is
   * closed.
   */
  attach(): () => void {
    this.#attached.inc();
    return () => this.#attached.dec();
  }

  async render(engine: EngineApi): Promise<string> {
    const [stats, alerts] = await Promise.all([engine.stats(), engine.alerts.figures()]);
    this.#alerts.show(alerts, Date.parse(stats.at));
    for (const [status, count] of Object.entries(stats.sandboxes)) this.#sandboxes.set({ status }, count);
    for (const [what, count] of Object.entries(stats.totals)) this.#totals.set({ what }, count);
    this.#links.set({ state: "up" }, stats.links.up);
    this.#links.set({ state: "down" }, stats.links.down);
    this.#linksLost.reset();
    this.#linksLost.inc(stats.links.lost);
    this.#orphans.set(stats.orphans);
    this.#running.set(stats.execsRunning);
    this.#queued.set(stats.execsQueued);
    this.#readers.set(stats.readers);
    this.#readersCut.reset();
    for (const [why, count] of Object.entries(stats.readersCut)) this.#readersCut.inc({ why }, count);
    this.#ports.set(engine.ports.open);
    this.#age.set(ageSeconds(stats, stats.lastObservationAt));
    this.#showCleaning(stats);
    this.#showRoom(stats);
    return this.registry.metrics();
  }

  #showCleaning(stats: Stats): void {
    this.#auditAge.set(ageSeconds(stats, stats.lastAuditAt));
    this.#sweepFailures.reset();
    this.#sweepRemoved.reset();
    for (const { layer, lastAt, overdue, failures, removed } of stats.sweeps) {
      this.#sweepAge.set({ layer }, ageSeconds(stats, lastAt));
      this.#sweepOverdue.set({ layer }, overdue ? 1 : 0);
      this.#sweepFailures.inc({ layer }, failures);
      this.#sweepRemoved.inc({ layer }, removed);
    }
  }

  #showRoom({ launches, capacity }: Stats): void {
    this.#suspended.set(launches.state === "open" ? 0 : 1);
    this.#waiting.set(launches.waiting);
    this.#diskFree.set(capacity?.diskFreeBytes ?? Number.NaN);
    this.#memoryFree.set(capacity?.memoryFreeBytes ?? Number.NaN);
  }

  /** Wraps the store, so that every commit that ends an exec also measures the exec's duration. */
  watchStore<S extends Store>(store: S): S {
    return withMethod(store, "commit", async (commit) => {
      await store.commit(commit);
      for (const change of commit.changes) {
        if (change.kind !== "exec.end") continue;
        const { status, startedAt, endedAt } = change.record;
        this.#ended.inc({ status });
        if (startedAt === null) continue;
        this.#execs.observe({ status }, Math.max(0, (endedAt ?? startedAt) - startedAt) / 1000);
      }
    });
  }

  /** Wraps the driver, so that every launch is measured. */
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

/**
 * Returns how many seconds have passed since a time; NaN if there is no time because the event has not happened yet.
 */
const ageSeconds = ({ at }: Stats, then: string | null): number =>
  then === null ? Number.NaN : (Date.parse(at) - Date.parse(then)) / 1000;

/** Returns an object with one method replaced. All other methods keep `this` bound to the original object. */
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
