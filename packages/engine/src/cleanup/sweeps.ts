import {
  causeOf,
  type LayerHealth,
  SWEEP_LAYERS,
  type SweepItem,
  type SweepLayer,
  type SweepReport,
  type SweepRule,
} from "@holdfast/contract";
import type { Cell } from "./cell.ts";
import { Resting, type RestingParts } from "./resting.ts";
import type { Retention } from "./retention.ts";
import { item, report, toldAsOrdered } from "./sweep-items.ts";
import { leastRecentlyUsed, ruleNow } from "./sweep-rules.ts";
import type { World } from "./world.ts";

export interface SweepParts extends RestingParts {
  /** Records the delete and sets it going; true once absence was observed, false where that takes longer. */
  remove(cell: Cell, holds: () => boolean): Promise<"removed" | "ordered" | "kept">;
  audit(): Promise<unknown>;
  retention: Retention;
}

const PRUNED_AT_ONCE = 5_000;
const REMOVED_AT_ONCE = 8;

interface Layer {
  everyMs: number;
  dueAt: number;
  lastAt: number | null;
  runs: number;
  failures: number;
  /** Rounds of its own, since the last that went well. */
  failedInARow: number;
  removed: number;
  lastError: string | null;
}

/** What someone may ask for. */
interface Order {
  dryRun: boolean;
  /** Whether what was created disposable goes even though the host is not short. */
  emergency: boolean;
}

/**
 * Cleaning, in four layers of their own pace: what is stale, what is past its age, what may go when the host runs short,
 * and the comparison of records with reality. Each item is handled alone: one that can't be removed is counted and
 * stays for the next round. Each layer keeps its own health, because cleaning that has stopped is noticed last by
 * whatever it should have cleaned. Nothing is removed here but by a rule of `ruleFor`. Where memory is what runs short,
 * what is idle is put to standby before anything is removed: that costs its user a moment, and no work.
 */
export class Sweeps {
  readonly #world: World;
  readonly #parts: SweepParts;
  readonly #layers: Record<SweepLayer, Layer>;
  readonly #resting: Resting;
  #conservative: Promise<SweepItem[]> | null = null;
  readonly #ordered = new Map<string, Promise<SweepReport>>();

  constructor(world: World, parts: SweepParts) {
    this.#world = world;
    this.#parts = parts;
    this.#resting = new Resting(world, parts);
    const { sweepStaleMs, sweepAgeMs, sweepPressureMs, auditEveryMs } = world.numbers;
    this.#layers = {
      stale: layer(sweepStaleMs),
      age: layer(sweepAgeMs),
      pressure: layer(sweepPressureMs),
      reconcile: layer(auditEveryMs),
    };
  }

  /** Wakes for whichever layer is due next. */
  async run(): Promise<void> {
    const { clock, stopping } = this.#world;
    const begunAt = clock.now();
    for (const name of SWEEP_LAYERS) this.#layers[name].dueAt = begunAt + this.#layers[name].everyMs;
    while (!stopping.aborted) {
      const due = Math.min(...SWEEP_LAYERS.map((name) => this.#layers[name].dueAt));
      await clock.sleep(Math.max(0, due - clock.now()), stopping).catch(() => undefined);
      for (const name of SWEEP_LAYERS) {
        if (stopping.aborted) return;
        if (this.#layers[name].dueAt <= clock.now()) await this.#runLayer(name);
      }
    }
  }

  async #runLayer(name: SweepLayer): Promise<void> {
    const { clock, log } = this.#world;
    const layer = this.#layers[name];
    try {
      const items = await this.#work(name, { dryRun: false, emergency: false });
      layer.runs += 1;
      const isFailed = items.some(({ action }) => action === "failed");
      layer.failedInARow = isFailed ? layer.failedInARow + 1 : 0;
      // Of the age layer everybody shares the same work, which tells of itself.
      if (name !== "age" && items.length > 0) {
        this.#note(layer, items);
        await this.#tell(report([name], items, { at: clock.now(), ms: 0 }));
      }
    } catch (error) {
      layer.failures += 1;
      layer.failedInARow += 1;
      layer.lastError = causeOf(error).message;
      if (!this.#world.stopping.aborted) log.error({ layer: name, cause: causeOf(error) }, "a sweep failed");
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
    const now = this.#world.clock.now();
    return SWEEP_LAYERS.map((name) => {
      const { everyMs, dueAt, lastAt, runs, failures, removed, lastError } = this.#layers[name];
      const overdue = dueAt > 0 && now > dueAt + everyMs;
      const at = lastAt === null ? null : new Date(lastAt).toISOString();
      return { layer: name, everyMs, lastAt: at, overdue, runs, failures, removed, lastError };
    });
  }

  /** Layers whose last round failed, for how many rounds, and why. */
  failing(): { layer: SweepLayer; rounds: number; why: string | null }[] {
    return SWEEP_LAYERS.map((layer) => {
      const { failedInARow, lastError } = this.#layers[layer];
      return { layer, rounds: failedInARow, why: lastError };
    }).filter(({ rounds }) => rounds > 0);
  }

  /**
   * All layers at once, by someone's order; who orders the same meanwhile shares it. A dry run changes nothing and says
   * what would go; the comparison with reality, which acts on what it finds, is not part of it.
   */
  now(order: Order): Promise<SweepReport> {
    const key = JSON.stringify([order.dryRun, order.emergency]);
    const underWay = this.#ordered.get(key);
    if (underWay !== undefined) return underWay;
    const work = this.#carryOut(order).finally(() => this.#ordered.delete(key));
    this.#ordered.set(key, work);
    return work;
  }

  async #carryOut(options: Order): Promise<SweepReport> {
    const { clock } = this.#world;
    const at = clock.now();
    const items: SweepItem[] = options.emergency ? await this.#resting.all(options.dryRun) : [];
    const layers = SWEEP_LAYERS.filter((name) => name !== "reconcile" || !options.dryRun);
    for (const name of layers) {
      const done = await this.#work(name, options).catch((error: unknown) => [
        { ...item(RULE_OF[name], null, 1, "failed"), message: causeOf(error).message },
      ]);
      if (!options.dryRun && name !== "age") this.#note(this.#layers[name], done);
      items.push(...done);
    }
    const made = report(layers, items, { at, ms: clock.now() - at, ...options });
    if (!options.dryRun) await this.#tell(made);
    return made;
  }

  /** What is known to be stale, for someone who needs room now. Callers at the same time share one. */
  async conservative(): Promise<SweepItem[]> {
    this.#conservative ??= this.#removeStale().finally(() => {
      this.#conservative = null;
    });
    return this.#conservative;
  }

  async #removeStale(): Promise<SweepItem[]> {
    const items = await this.#removeBy({ dryRun: false, short: false });
    if (items.length === 0) return items;
    this.#note(this.#layers.age, items);
    await this.#tell(report(["age"], items, { at: this.#world.clock.now(), ms: 0 }));
    return items;
  }

  #work(name: SweepLayer, { dryRun, emergency }: Order): Promise<SweepItem[]> {
    switch (name) {
      case "stale":
        return this.#stale(dryRun);
      case "age":
        return dryRun ? this.#removeBy({ dryRun, short: false }) : this.conservative();
      case "pressure":
        return this.#pressure(dryRun, emergency);
      case "reconcile":
        return this.#parts.audit().then(() => []);
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

  /** In pieces that don't keep others from the database for long. A dry run looks at the first piece. */
  async #prune(dryRun: boolean): Promise<{ events: number; rest: number }> {
    const { clock, numbers, store, stopping } = this.#world;
    const now = clock.now();
    const order = {
      eventsBefore: now - numbers.eventRetentionMs,
      keysBefore: now - numbers.keyRetentionMs,
      goneBefore: now - numbers.goneRetentionMs,
      alertsBefore: now - numbers.alertRetentionMs,
      deliveriesBefore: now - numbers.deliveryRetentionMs,
      limit: PRUNED_AT_ONCE,
    };
    const total = { events: 0, rest: 0 };
    for (;;) {
      const { events, ...others } = await store.prunable(order);
      const counts = Object.values(others);
      const rest = counts.reduce((sum, count) => sum + count, 0);
      total.events += events;
      total.rest += rest;
      if (dryRun || events + rest === 0) return total;
      await store.commit({ changes: [{ kind: "prune", ...order }] });
      if (Math.max(events, ...counts) < PRUNED_AT_ONCE || stopping.aborted) return total;
    }
  }

  /** Only while the host is short, or someone says that this is an emergency; stops as soon as it is short no more. */
  async #pressure(dryRun: boolean, emergency: boolean): Promise<SweepItem[]> {
    if (emergency) return (await this.#removeBy({ dryRun, short: true })).map(toldAsOrdered);
    if (!(await this.#parts.admission.isShort())) return [];
    const rested = await this.#resting.untilRelieved(dryRun);
    const removed = await this.#removeBy({ dryRun, short: true, untilRelieved: !dryRun });
    return [...rested, ...removed];
  }

  async #removeBy(options: {
    dryRun: boolean;
    short: boolean;
    untilRelieved?: boolean;
  }): Promise<SweepItem[]> {
    const { clock } = this.#world;
    const items: SweepItem[] = [];
    const rest = leastRecentlyUsed(this.#parts.cells()).values();
    const worker = async () => {
      for (const cell of rest) {
        const rule = ruleNow(cell, options, clock.now());
        if (rule === null) continue;
        if (rule === "disposable" && options.untilRelieved && !(await this.#parts.admission.isShort()))
          return;
        // It may be in use by the time that its turn comes.
        const holds = () => ruleNow(cell, options, clock.now()) !== null;
        items.push(...(await this.#removeOne(cell, rule, options.dryRun, holds)));
      }
    };
    const width = options.untilRelieved ? 1 : REMOVED_AT_ONCE;
    await Promise.all(Array.from({ length: width }, worker));
    return items;
  }

  async #removeOne(cell: Cell, rule: SweepRule, dryRun: boolean, holds: () => boolean): Promise<SweepItem[]> {
    const { log } = this.#world;
    if (dryRun) return [item(rule, cell, 1, "would_remove")];
    try {
      const came = await this.#parts.remove(cell, holds);
      if (came === "kept") return [];
      log.info({ sandbox: cell.id, rule, came }, "a sandbox is removed by a rule");
      return [item(rule, cell, 1, came)];
    } catch (error) {
      log.error({ sandbox: cell.id, rule, cause: causeOf(error) }, "a sandbox could not be removed");
      return [{ ...item(rule, cell, 1, "failed"), message: causeOf(error).message }];
    }
  }

  async #tell(made: SweepReport): Promise<void> {
    const { clock, store, log } = this.#world;
    const { layers, removed, putToStandby, failed, emergency } = made;
    const slept = putToStandby > 0 ? `, put ${putToStandby} to standby` : "";
    const message = `A sweep removed ${removed}${slept} and failed at ${failed}.`;
    log.info({ layers, removed, putToStandby, failed, emergency }, message);
    await store
      .commit({
        changes: [],
        events: [
          {
            at: clock.now(),
            type: "sweep.done",
            message,
            data: { ...made, items: made.items.slice(0, 100) },
          },
        ],
      })
      .catch((error: unknown) => log.warn({ cause: causeOf(error) }, "a sweep could not be told of"));
  }
}

/** What a layer that fails as a whole was about to clean. */
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
