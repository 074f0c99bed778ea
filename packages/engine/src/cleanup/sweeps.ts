import {
  causeOf,
  type LayerHealth,
  SWEEP_LAYERS,
  type SweepItem,
  type SweepLayer,
  type SweepReport,
  type SweepRule,
} from "@holdfast/contract";
import { recordEvent } from "../events/record-event.ts";
import type { Retention } from "../execs/exec-retention.ts";
import { iso } from "../lib/format.ts";
import type { Deletion } from "../lifecycle/delete.ts";
import type { EngineEvents } from "../live/engine-events.ts";
import type { LiveSandbox } from "../live/live-sandbox.ts";
import { removalCause } from "../model/removal-cause.ts";
import type { EngineContext } from "../ports/context.ts";
import type { Audit } from "./audit.ts";
import { PressureStandby, type PressureStandbyParts } from "./pressure-standby.ts";
import { item, report, withRequestReason } from "./sweep-report.ts";
import { leastRecentlyUsed, ruleNow } from "./sweep-rules.ts";

interface SweepParts extends PressureStandbyParts {
  deletion: Deletion;
  audit: Audit;
  retention: Retention;
  events: EngineEvents;
}

const PRUNED_AT_ONCE = 5_000;
const REMOVED_AT_ONCE = 8;

interface Layer {
  everyMs: number;
  dueAt: number;
  lastAt: number | null;
  runs: number;
  failures: number;
  /** How many scheduled rounds have failed since the last success. */
  failedInARow: number;
  removed: number;
  lastError: string | null;
}

/** The options of a sweep on request. */
interface SweepOptions {
  dryRun: boolean;
  /** Whether disposable sandboxes are removed although the host is not short of resources. */
  emergency: boolean;
}

/**
 * Cleans up in four layers, each with its own interval: stale data, sandboxes past their age, sandboxes that may be
 * removed when the host runs short, and the audit.
 */
export class Sweeps {
  readonly #context: EngineContext;
  readonly #parts: SweepParts;
  readonly #layers: Record<SweepLayer, Layer>;
  readonly #pressureStandby: PressureStandby;
  /**
   * Removals in progress. A sandbox whose removal takes long is not removed a second time and does not delay other
   * removals.
   */
  readonly #removing = new Map<LiveSandbox, Promise<SweepItem[]>>();
  readonly #requested = new Map<string, Promise<SweepReport>>();

  constructor(context: EngineContext, parts: SweepParts) {
    this.#context = context;
    this.#parts = parts;
    this.#pressureStandby = new PressureStandby(context, parts);
    const { sweepStaleMs, sweepAgeMs, sweepPressureMs, auditEveryMs } = context.numbers;
    this.#layers = {
      stale: layer(sweepStaleMs),
      age: layer(sweepAgeMs),
      pressure: layer(sweepPressureMs),
      reconcile: layer(auditEveryMs),
    };
    parts.events.roomNeeded.subscribe(async () => {
      await this.conservative();
    });
  }

  /** Runs each layer when it is due. A slow layer does not delay the others. */
  async run(): Promise<void> {
    const { clock, stopping } = this.#context;
    const begunAt = clock.now();
    for (const name of SWEEP_LAYERS) this.#layers[name].dueAt = begunAt + this.#layers[name].everyMs;
    const loop = async (name: SweepLayer) => {
      while (!stopping.aborted) {
        const waitMs = Math.max(0, this.#layers[name].dueAt - clock.now());
        await clock.sleep(waitMs, stopping).catch(() => undefined);
        if (stopping.aborted) return;
        if (this.#layers[name].dueAt <= clock.now()) await this.#runLayer(name);
      }
    };
    await Promise.all(SWEEP_LAYERS.map(loop));
  }

  async #runLayer(name: SweepLayer): Promise<void> {
    const { clock, log } = this.#context;
    const layer = this.#layers[name];
    try {
      const items = await this.#work(name, { dryRun: false, emergency: false });
      layer.runs += 1;
      const isFailed = items.some(({ action }) => action === "failed");
      layer.failedInARow = isFailed ? layer.failedInARow + 1 : 0;
      // The age layer is left out: it reports its removals itself, because other callers also run it.
      if (name !== "age" && items.length > 0) {
        this.#note(layer, items);
        await this.#record(report([name], items, { at: clock.now(), ms: 0 }));
      }
    } catch (error) {
      layer.failures += 1;
      layer.failedInARow += 1;
      layer.lastError = causeOf(error).message;
      if (!this.#context.stopping.aborted)
        log.error({ layer: name, cause: causeOf(error) }, "a sweep failed");
    }
    layer.lastAt = clock.now();
    layer.dueAt = clock.now() + layer.everyMs;
  }

  #note(layer: Layer, items: readonly SweepItem[]): void {
    const failed = items.filter(({ action }) => action === "failed");
    layer.failures += failed.length > 0 ? 1 : 0;
    layer.lastError = failed[0]?.message ?? null;
    layer.removed += items.reduce((sum, { action, count }) => sum + (action === "removed" ? count : 0), 0);
  }

  health(): LayerHealth[] {
    const now = this.#context.clock.now();
    return SWEEP_LAYERS.map((name) => {
      const { everyMs, dueAt, lastAt, runs, failures, removed, lastError } = this.#layers[name];
      const overdue = dueAt > 0 && now > dueAt + everyMs;
      const at = iso(lastAt);
      return { layer: name, everyMs, lastAt: at, overdue, runs, failures, removed, lastError };
    });
  }

  /** Returns the layers whose last round failed, with the number of failed rounds and the reason. */
  failing(): { layer: SweepLayer; rounds: number; why: string | null }[] {
    return SWEEP_LAYERS.map((layer) => {
      const { failedInARow, lastError } = this.#layers[layer];
      return { layer, rounds: failedInARow, why: lastError };
    }).filter(({ rounds }) => rounds > 0);
  }

  /**
   * Runs all layers on request; concurrent requests with the same options share one run. A dry run changes nothing and
   * reports what would be removed. It skips the audit, because the audit always acts on its findings.
   */
  now(options: SweepOptions): Promise<SweepReport> {
    const key = JSON.stringify([options.dryRun, options.emergency]);
    const inProgress = this.#requested.get(key);
    if (inProgress !== undefined) return inProgress;
    const sweep = this.#runAll(options).finally(() => this.#requested.delete(key));
    this.#requested.set(key, sweep);
    return sweep;
  }

  async #runAll(options: SweepOptions): Promise<SweepReport> {
    const { clock } = this.#context;
    const at = clock.now();
    const items: SweepItem[] = options.emergency ? await this.#pressureStandby.all(options.dryRun) : [];
    const layers = SWEEP_LAYERS.filter((name) => name !== "reconcile" || !options.dryRun);
    for (const name of layers) {
      const done = await this.#work(name, options).catch((error: unknown) => [
        { ...item(RULE_OF[name], null, 1, "failed"), message: causeOf(error).message },
      ]);
      if (!options.dryRun && name !== "age") this.#note(this.#layers[name], done);
      items.push(...done);
    }
    const made = report(layers, items, { at, ms: clock.now() - at, ...options });
    if (!options.dryRun) await this.#record(made);
    return made;
  }

  /**
   * Removes sandboxes past their age for a caller that needs capacity now, and also waits for removals in progress.
   * Each removal is reported only by the run that started it.
   */
  async conservative(): Promise<SweepItem[]> {
    const inProgress = [...this.#removing.values()];
    const items = await this.#removeBy({ dryRun: false, short: false });
    await this.#recordAges(items);
    await Promise.all(inProgress);
    return items;
  }

  /** Removes one sandbox if a rule about its age applies to it. */
  async removeIfDue(live: LiveSandbox): Promise<void> {
    const { clock } = this.#context;
    const scope = { short: false };
    const ruleAt = () => ruleNow(live, scope, clock.now());
    const rule = ruleAt();
    if (rule === null || this.#removing.has(live)) return;
    await this.#recordAges(await this.#removeOnce(live, rule, () => ruleAt() !== null));
  }

  async #recordAges(items: SweepItem[]): Promise<void> {
    if (items.length === 0) return;
    this.#note(this.#layers.age, items);
    await this.#record(report(["age"], items, { at: this.#context.clock.now(), ms: 0 }));
  }

  #work(name: SweepLayer, { dryRun, emergency }: SweepOptions): Promise<SweepItem[]> {
    switch (name) {
      case "stale":
        return this.#stale(dryRun);
      case "age":
        return dryRun ? this.#removeBy({ dryRun, short: false }) : this.conservative();
      case "pressure":
        return this.#pressure(dryRun, emergency);
      case "reconcile":
        return this.#parts.audit.run("hourly").then(() => []);
    }
  }

  async #stale(dryRun: boolean): Promise<SweepItem[]> {
    const { events, rest } = await this.#prune(dryRun);
    const action = dryRun ? "would_remove" : "removed";
    const items: SweepItem[] = [];
    if (events > 0) items.push(item("old_events", null, events, action));
    if (rest > 0) items.push(item("old_keys", null, rest, action));
    const execs = dryRun ? 0 : await this.#parts.retention.sweep();
    if (execs > 0) items.push(item("ended_execs", null, execs, "removed"));
    return items;
  }

  /** Deletes old records, in batches so that other commits wait only briefly. A dry run only counts the first batch. */
  async #prune(dryRun: boolean): Promise<{ events: number; rest: number }> {
    const { clock, numbers, store, stopping } = this.#context;
    const now = clock.now();
    const limits = {
      eventsBefore: now - numbers.eventRetentionMs,
      keysBefore: now - numbers.keyRetentionMs,
      goneBefore: now - numbers.goneRetentionMs,
      alertsBefore: now - numbers.alertRetentionMs,
      deliveriesBefore: now - numbers.deliveryRetentionMs,
      limit: PRUNED_AT_ONCE,
    };
    const total = { events: 0, rest: 0 };
    for (;;) {
      const { events, ...others } = await store.prunable(limits);
      const counts = Object.values(others);
      const rest = counts.reduce((sum, count) => sum + count, 0);
      total.events += events;
      total.rest += rest;
      if (dryRun || events + rest === 0) return total;
      await store.commit({ changes: [{ kind: "prune", ...limits }] });
      if (Math.max(events, ...counts) < PRUNED_AT_ONCE || stopping.aborted) return total;
    }
  }

  /**
   * Relieves a shortage of resources. In an emergency cleanup on request, removes every sandbox that may be removed in
   * a shortage, even if the host is not short. Otherwise acts only while the host is short: suspends idle sandboxes
   * first, then removes sandboxes until the shortage has ended.
   */
  async #pressure(dryRun: boolean, emergency: boolean): Promise<SweepItem[]> {
    if (emergency) return (await this.#removeBy({ dryRun, short: true })).map(withRequestReason);
    if (!(await this.#parts.admission.isShort())) return [];
    const suspended = await this.#pressureStandby.untilRelieved(dryRun);
    const removed = await this.#removeBy({ dryRun, short: true, untilRelieved: !dryRun });
    return [...suspended, ...removed];
  }

  async #removeBy(options: {
    dryRun: boolean;
    short: boolean;
    untilRelieved?: boolean;
  }): Promise<SweepItem[]> {
    const { clock } = this.#context;
    const items: SweepItem[] = [];
    const rest = leastRecentlyUsed(this.#parts.registry.allLive()).values();
    const worker = async () => {
      for (const live of rest) {
        const rule = ruleNow(live, options, clock.now());
        if (rule === null) continue;
        if (rule === "disposable" && options.untilRelieved && !(await this.#parts.admission.isShort()))
          return;
        // The rule is checked again right before the removal, because the sandbox may be in use by then.
        const stillWanted = () => ruleNow(live, options, clock.now()) !== null;
        if (options.dryRun) items.push(item(rule, live, 1, "would_remove"));
        else if (!this.#removing.has(live)) items.push(...(await this.#removeOnce(live, rule, stillWanted)));
      }
    };
    const width = options.untilRelieved ? 1 : REMOVED_AT_ONCE;
    await Promise.all(Array.from({ length: width }, worker));
    return items;
  }

  #removeOnce(live: LiveSandbox, rule: SweepRule, stillWanted: () => boolean): Promise<SweepItem[]> {
    const removal = this.#removeOne(live, rule, stillWanted).finally(() => this.#removing.delete(live));
    this.#removing.set(live, removal);
    return removal;
  }

  async #removeOne(live: LiveSandbox, rule: SweepRule, stillWanted: () => boolean): Promise<SweepItem[]> {
    const { log } = this.#context;
    try {
      const action = await this.#parts.deletion.deleteIf(live, removalCause(rule), stillWanted);
      if (action === "kept") return [];
      log.info({ sandbox: live.id, rule, action }, "removing a sandbox by a rule");
      return [item(rule, live, 1, action)];
    } catch (error) {
      log.error({ sandbox: live.id, rule, cause: causeOf(error) }, "failed to remove a sandbox");
      return [{ ...item(rule, live, 1, "failed"), message: causeOf(error).message }];
    }
  }

  async #record(made: SweepReport): Promise<void> {
    const { clock, log } = this.#context;
    const { layers, removed, putToStandby, failed, emergency } = made;
    const suspended = putToStandby > 0 ? `, suspended ${putToStandby}` : "";
    const message = `Sweep finished: removed ${removed}${suspended}, failed ${failed}.`;
    log.info({ layers, removed, putToStandby, failed, emergency }, message);
    await recordEvent(this.#context, {
      at: clock.now(),
      type: "sweep.done",
      message,
      data: { ...made, items: made.items.slice(0, 100) },
    });
  }
}

/** The rule reported for a layer that fails as a whole. */
const RULE_OF: Record<SweepLayer, SweepRule> = {
  stale: "ended_execs",
  age: "past_ttl",
  pressure: "disposable",
  reconcile: "kept_long_enough",
};

const layer = (everyMs: number): Layer => ({
  everyMs,
  dueAt: 0,
  lastAt: null,
  runs: 0,
  failures: 0,
  failedInARow: 0,
  removed: 0,
  lastError: null,
});
