import {
  causeOf,
  type DeliveryId,
  type DeliveryList,
  type DeliveryState,
  HoldfastError,
  isDeliveryId,
  type Numbers,
} from "@holdfast/contract";
import { viewAlert, viewDelivery } from "./alert-view.ts";
import { soonest, within } from "./clock.ts";
import type { Change, NewEvent, Notifier } from "./ports.ts";
import type { AlertRecord, DeliveryRecord } from "./records.ts";
import type { World } from "./world.ts";

/** Deliveries that are read at once. */
const PAGE = 1_000;
/** There are two of an alert: that it fires, and that it has cleared. */
const PER_ALERT = 2;
const STORE_AGAIN_MS = 1_000;

const EARLIER_IS_DEAD = "That it fired could not be delivered, and is told first.";

/** What becomes of a delivery whose try failed: the next one after its wait, or none. */
export function afterFailure(
  record: DeliveryRecord,
  why: string,
  now: number,
  { deliveryBackoffMs }: Pick<Numbers, "deliveryBackoffMs">,
): DeliveryRecord {
  const wait = deliveryBackoffMs[record.attempts];
  const tried = { ...record, attempts: record.attempts + 1, lastError: why };
  return wait === undefined ? dead(tried, why) : { ...tried, nextAttemptAt: now + wait };
}

const delivered = (record: DeliveryRecord, now: number): DeliveryRecord => ({
  ...record,
  state: "delivered",
  attempts: record.attempts + 1,
  nextAttemptAt: null,
  deliveredAt: now,
  lastError: null,
});

const dead = (record: DeliveryRecord, why: string): DeliveryRecord => ({
  ...record,
  state: "dead",
  nextAttemptAt: null,
  lastError: why,
});

/** A wait never has longer to go than it lasts: where it seems to, the time of day was set back. */
export function isDue(
  { attempts, nextAttemptAt }: DeliveryRecord,
  now: number,
  { deliveryBackoffMs }: Pick<Numbers, "deliveryBackoffMs">,
): boolean {
  const leftMs = (nextAttemptAt ?? now) - now;
  return leftMs <= 0 || leftMs > (deliveryBackoffMs[attempts - 1] ?? 0);
}

/**
 * Messages about alerts, on their way to whoever is to be told. A message is stored in the commit of what it tells of, so
 * that neither a kill nor a power cut loses it, and is marked as delivered after it was taken: a server that dies in
 * between sends it again, under the same id. Those about the same alert go one after the other, so that nobody hears that it
 * has cleared before they heard that it fired; where the first could not be delivered, the second waits with it. Tries are
 * backed off and bounded; then a message is dead, which is told, and kept until somebody has it tried again.
 */
export class Outbox {
  readonly #world: World;
  /** Those that are pending, by key of their alert, in their order. */
  readonly #queues = new Map<string, DeliveryRecord[]>();
  /** Keys of which one is being tried. */
  readonly #trying = new Map<string, Promise<void>>();
  #added = new AbortController();
  #retries: Promise<unknown> = Promise.resolve();

  constructor(world: World) {
    this.#world = world;
  }

  get pending(): number {
    return this.#queues.values().reduce((sum, queue) => sum + queue.length, 0);
  }

  counts(): Promise<Record<DeliveryState, number>> {
    return this.#world.store.deliveryCounts();
  }

  /** Takes up what an earlier server has not delivered. */
  async load(): Promise<void> {
    const { store } = this.#world;
    const found: DeliveryRecord[] = [];
    for (;;) {
      const page = await store.deliveries({ state: "pending", before: found.at(-1)?.id, limit: PAGE });
      found.push(...page);
      if (page.length < PAGE) break;
    }
    for (const record of found.reverse()) this.#queue(record).push(record);
  }

  /** What is to be told of these alerts: to be stored with them, and then added. Where too much is pending it is dead at once. */
  plan(alerts: readonly AlertRecord[]): DeliveryRecord[] {
    const { clock, ids, notifier, numbers } = this.#world;
    if (notifier === null) return [];
    const room = numbers.deliveriesPending - this.pending;
    const now = clock.now();
    return alerts.map((alert, index) => {
      const record: DeliveryRecord = {
        id: ids.delivery(),
        state: "pending",
        alert,
        attempts: 0,
        createdAt: now,
        nextAttemptAt: now,
        deliveredAt: null,
        lastError: null,
      };
      return index < room
        ? record
        : dead(record, `${numbers.deliveriesPending} others were pending already.`);
    });
  }

  /** Once they are stored. */
  add(records: readonly DeliveryRecord[]): void {
    for (const record of records) if (record.state === "pending") this.#queue(record).push(record);
    this.#wakeUp();
  }

  async run(): Promise<void> {
    const { clock, notifier, numbers, stopping } = this.#world;
    if (notifier === null) return;
    while (!stopping.aborted) {
      this.#added = new AbortController();
      const now = clock.now();
      for (const record of this.#heads()) {
        if (this.#trying.size >= numbers.deliveriesAtOnce) break;
        if (isDue(record, now, numbers)) this.#begin(record, notifier);
      }
      await soonest(clock, this.#idleMs(now), stopping, this.#added.signal);
    }
    await Promise.allSettled(this.#trying.values());
  }

  /** The first of each key that nothing is being tried of; whoever has waited longest is first. */
  #heads(): DeliveryRecord[] {
    return [...this.#queues]
      .flatMap(([key, [head]]) => (head === undefined || this.#trying.has(key) ? [] : [head]))
      .sort((a, b) => (a.nextAttemptAt ?? 0) - (b.nextAttemptAt ?? 0));
  }

  /** Until the next one is due. Whatever is added, or comes back, ends it before. */
  #idleMs(now: number): number {
    const { deliveryBackoffMs, deliveryMs } = this.#world.numbers;
    const waits = this.#heads().map(({ nextAttemptAt }) => (nextAttemptAt ?? now) - now);
    // Of those that are due there is one only where as many are being tried as may be.
    return Math.min(Math.max(deliveryMs, ...deliveryBackoffMs), ...waits.filter((ms) => ms > 0));
  }

  #begin(record: DeliveryRecord, notifier: Notifier): void {
    const { key } = record.alert;
    const trying = this.#try(record, notifier).finally(() => {
      this.#trying.delete(key);
      this.#wakeUp();
    });
    this.#trying.set(key, trying);
  }

  async #try(record: DeliveryRecord, notifier: Notifier): Promise<void> {
    const { clock, numbers, stopping } = this.#world;
    const limit = { ms: numbers.deliveryMs, what: "delivering", signal: stopping };
    const message = { id: record.id, createdAt: record.createdAt, alert: viewAlert(record.alert) };
    let settled: DeliveryRecord;
    try {
      if (await this.#isAheadOfFire(record)) settled = dead(record, EARLIER_IS_DEAD);
      else {
        await within(clock, limit, (signal) => notifier.deliver(message, signal));
        settled = delivered(record, clock.now());
      }
    } catch (error) {
      if (stopping.aborted) return;
      settled = afterFailure(record, causeOf(error).message, clock.now(), numbers);
    }
    await this.#settle(settled);
  }

  async #isAheadOfFire({ id, alert }: DeliveryRecord): Promise<boolean> {
    if (alert.clearedAt === null) return false;
    const { store } = this.#world;
    const given = await store.deliveries({ alertId: alert.id, state: "dead", limit: PER_ALERT });
    return given.some((other) => other.id !== id);
  }

  /** What became of a try is not forgotten because the store is unwell: until it takes it, nothing else of the key is tried. */
  async #settle(record: DeliveryRecord): Promise<void> {
    const { store, clock, log, stopping } = this.#world;
    this.#tell(record);
    const events = record.state === "dead" ? [deathOf(record, clock.now())] : [];
    for (;;) {
      try {
        await store.commit({ changes: [{ kind: "delivery.update", record }], events });
        break;
      } catch (error) {
        if (stopping.aborted) return;
        log.error(
          { delivery: record.id, cause: causeOf(error) },
          "what became of a delivery is stored again",
        );
        await clock.sleep(STORE_AGAIN_MS, stopping).catch(() => undefined);
      }
    }
    const queue = this.#queue(record);
    if (record.state === "pending") queue[0] = record;
    else queue.shift();
    if (queue.length === 0) this.#queues.delete(record.alert.key);
  }

  #tell({ id, state, alert, attempts, nextAttemptAt, lastError: why }: DeliveryRecord): void {
    const { log } = this.#world;
    const fields = { delivery: id, alert: alert.key, attempts };
    if (state === "delivered") log.info(fields, "a message about an alert was delivered");
    else if (state === "pending") log.warn({ ...fields, nextAttemptAt, why }, "a delivery failed");
    else log.error({ ...fields, why }, "a delivery is given up");
  }

  async list(filter: {
    state?: DeliveryState | undefined;
    cursor?: string | undefined;
    limit: number;
  }): Promise<DeliveryList> {
    const { state, cursor, limit } = filter;
    if (cursor !== undefined && !isDeliveryId(cursor))
      throw new HoldfastError("invalid_request", { message: "The cursor is not valid." });
    const found = await this.#world.store.deliveries({ state, before: cursor, limit: limit + 1 });
    const items = found.slice(0, limit).map(viewDelivery);
    return { items, nextCursor: found.length > limit ? (items.at(-1)?.id ?? null) : null };
  }

  /** One at a time: who asks for the same meanwhile finds that it was done. */
  redeliver(id: string): Promise<DeliveryRecord> {
    const turn = this.#retries.then(() => this.#redeliver(id));
    this.#retries = turn.catch(() => undefined);
    return turn;
  }

  async #redeliver(id: string): Promise<DeliveryRecord> {
    const { store, clock, notifier, log, numbers } = this.#world;
    if (notifier === null) throw new HoldfastError("no_webhook");
    const asked = isDeliveryId(id) ? await store.delivery(id) : null;
    if (asked === null) throw new HoldfastError("delivery_not_found");
    if (asked.state !== "dead") return asked;
    const all = await store.deliveries({ alertId: asked.alert.id, state: "dead", limit: PER_ALERT });
    if (this.pending + all.length > numbers.deliveriesPending) {
      const message = `${numbers.deliveriesPending} deliveries are pending already.`;
      throw new HoldfastError("capacity", { message });
    }
    const nextAttemptAt = clock.now();
    const again = all
      .reverse()
      .map((record): DeliveryRecord => ({ ...record, state: "pending", attempts: 0, nextAttemptAt }));
    await store.commit({
      changes: again.map((record): Change => ({ kind: "delivery.update", record })),
    });
    log.info(
      { deliveries: again.map((each) => each.id), alert: asked.alert.key },
      "dead deliveries are tried again",
    );
    // They are older than all that is pending of their key.
    this.#queue(asked).splice(this.#trying.has(asked.alert.key) ? 1 : 0, 0, ...again);
    this.#wakeUp();
    return again.find((record) => record.id === (id as DeliveryId)) ?? asked;
  }

  #queue({ alert: { key } }: DeliveryRecord): DeliveryRecord[] {
    const queue = this.#queues.get(key) ?? [];
    this.#queues.set(key, queue);
    return queue;
  }

  #wakeUp(): void {
    this.#added.abort();
  }
}

/** That a message was given up. */
export const deathOf = ({ id, alert, lastError }: DeliveryRecord, at: number): NewEvent => ({
  at,
  type: "delivery.dead",
  sandboxId: alert.sandboxId ?? undefined,
  message: `A message about the alert ${alert.key} could not be delivered: ${lastError ?? "unknown why"}`,
  data: { delivery: id, alert: alert.key },
});
