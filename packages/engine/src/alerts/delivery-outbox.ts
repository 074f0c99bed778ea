import {
  causeOf,
  type DeliveryId,
  type DeliveryList,
  type DeliveryState,
  HoldfastError,
  isDeliveryId,
  type Numbers,
} from "@holdfast/contract";
import { invalidCursor } from "../lib/cursor.ts";
import { soonest, within } from "../lib/deadline.ts";
import { SerialQueue } from "../lib/serial-queue.ts";
import type { EngineContext } from "../ports/context.ts";
import type { Change, NewEvent, Notifier } from "../ports/index.ts";
import type { AlertRecord, DeliveryRecord } from "../ports/records.ts";
import { viewAlert, viewDelivery } from "./view.ts";

/** Maximum number of deliveries that are read from the store at a time. */
const PAGE = 1_000;
/** An alert has at most two deliveries: one when it fires and one when it clears. */
const PER_ALERT = 2;
const STORE_AGAIN_MS = 1_000;

const EARLIER_IS_DEAD = "The earlier delivery, that the alert fired, could not be delivered.";

/**
 * Returns the delivery as it is after a failed attempt. If attempts are left, it is pending, and the next attempt
 * follows after the back-off. Otherwise it is dead, which means given up.
 */
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

/**
 * Whether the next attempt is due: its time has come, or the remaining wait is longer than the back-off, which shows
 * that the clock was set back.
 */
export function isDue(
  { attempts, nextAttemptAt }: DeliveryRecord,
  now: number,
  { deliveryBackoffMs }: Pick<Numbers, "deliveryBackoffMs">,
): boolean {
  const leftMs = (nextAttemptAt ?? now) - now;
  return leftMs <= 0 || leftMs > (deliveryBackoffMs[attempts - 1] ?? 0);
}

/**
 * Delivers messages about alerts to the webhook. An alert has two deliveries: one when it fires and one when it clears.
 * Each is stored in the same commit as the change of its alert, so neither a kill nor a power cut loses it. It is
 * marked as delivered after the webhook accepted it. If the server dies before that mark is stored, the next server
 * sends the delivery again under the same id. A failed delivery is tried again after a back-off. After the last attempt
 * it is given up: it is marked as dead, an event is recorded, and the delivery is kept until a caller requests a
 * redelivery. The deliveries of one alert are sent in order, and if the first one is dead, the second is marked as dead
 * without an attempt. So a receiver never learns that an alert cleared before it learned that the alert fired.
 */
export class Outbox {
  readonly #context: EngineContext;
  /** Pending deliveries in order, by the key of their alert. */
  readonly #queues = new Map<string, DeliveryRecord[]>();
  /** Attempts in progress, by the key of their alert. */
  readonly #trying = new Map<string, Promise<void>>();
  #added = new AbortController();
  readonly #retries: SerialQueue;

  constructor(context: EngineContext) {
    this.#context = context;
    this.#retries = new SerialQueue({ limit: context.numbers.changesWaiting });
  }

  get pending(): number {
    return this.#queues.values().reduce((sum, queue) => sum + queue.length, 0);
  }

  counts(): Promise<Record<DeliveryState, number>> {
    return this.#context.store.deliveryCounts();
  }

  /** Loads the deliveries that an earlier server left pending. */
  async load(): Promise<void> {
    const { store } = this.#context;
    const found: DeliveryRecord[] = [];
    for (;;) {
      const page = await store.deliveries({ state: "pending", before: found.at(-1)?.id, limit: PAGE });
      found.push(...page);
      if (page.length < PAGE) break;
    }
    for (const record of found.reverse()) this.#queue(record).push(record);
  }

  /**
   * Creates the deliveries of the given alerts. The caller stores the deliveries with the alerts and then calls `add`.
   * At most `deliveriesPending` deliveries may be pending; those beyond that number are created as dead, which means
   * given up.
   */
  plan(alerts: readonly AlertRecord[]): DeliveryRecord[] {
    const { clock, ids, notifier, numbers } = this.#context;
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
        : dead(record, `${numbers.deliveriesPending} other deliveries were already pending.`);
    });
  }

  /** Queues deliveries. Must be called after they were stored. */
  add(records: readonly DeliveryRecord[]): void {
    for (const record of records) if (record.state === "pending") this.#queue(record).push(record);
    this.#wakeUp();
  }

  async run(): Promise<void> {
    const { clock, notifier, numbers, stopping } = this.#context;
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

  /**
   * Returns the first delivery of each alert that has no attempt in progress; the delivery that has waited longest
   * comes first.
   */
  #heads(): DeliveryRecord[] {
    return [...this.#queues]
      .flatMap(([key, [head]]) => (head === undefined || this.#trying.has(key) ? [] : [head]))
      .sort((a, b) => (a.nextAttemptAt ?? 0) - (b.nextAttemptAt ?? 0));
  }

  /**
   * Returns how long `run` waits for the next delivery to become due. A new delivery or a finished attempt ends that
   * wait earlier.
   */
  #idleMs(now: number): number {
    const { deliveryBackoffMs, deliveryMs } = this.#context.numbers;
    const waits = this.#heads().map(({ nextAttemptAt }) => (nextAttemptAt ?? now) - now);
    // Only waits in the future need a timer. A delivery that is already due waits for a free slot, and the attempt that
    // frees the slot ends the wait.
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
    const { clock, numbers, stopping } = this.#context;
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
    const { store } = this.#context;
    const given = await store.deliveries({ alertId: alert.id, state: "dead", limit: PER_ALERT });
    return given.some((other) => other.id !== id);
  }

  /**
   * Stores the result of an attempt, retrying until the store accepts it. Until then no other delivery of the same
   * alert is attempted.
   */
  async #settle(record: DeliveryRecord): Promise<void> {
    const { store, clock, log, stopping } = this.#context;
    this.#logResult(record);
    const events = record.state === "dead" ? [deadDeliveryEvent(record, clock.now())] : [];
    for (;;) {
      try {
        await store.commit({ changes: [{ kind: "delivery.update", record }], events });
        break;
      } catch (error) {
        if (stopping.aborted) return;
        log.error(
          { delivery: record.id, cause: causeOf(error) },
          "failed to store the result of a delivery, retrying",
        );
        await clock.sleep(STORE_AGAIN_MS, stopping).catch(() => undefined);
      }
    }
    const queue = this.#queue(record);
    if (record.state === "pending") queue[0] = record;
    else queue.shift();
    if (queue.length === 0) this.#queues.delete(record.alert.key);
  }

  #logResult({ id, state, alert, attempts, nextAttemptAt, lastError: why }: DeliveryRecord): void {
    const { log } = this.#context;
    const fields = { delivery: id, alert: alert.key, attempts };
    if (state === "delivered") log.info(fields, "alert delivered");
    else if (state === "pending") log.warn({ ...fields, nextAttemptAt, why }, "delivery attempt failed");
    else log.error({ ...fields, why }, "delivery given up");
  }

  async list(filter: {
    state?: DeliveryState | undefined;
    cursor?: string | undefined;
    limit: number;
  }): Promise<DeliveryList> {
    const { state, cursor, limit } = filter;
    if (cursor !== undefined && !isDeliveryId(cursor)) throw invalidCursor();
    const found = await this.#context.store.deliveries({ state, before: cursor, limit: limit + 1 });
    const items = found.slice(0, limit).map(viewDelivery);
    return { items, nextCursor: found.length > limit ? (items.at(-1)?.id ?? null) : null };
  }

  /**
   * Tries to deliver a dead delivery again, and also the other dead delivery of the same alert. Requests run one at a
   * time, so a concurrent request for the same delivery finds it pending.
   */
  redeliver(id: string): Promise<DeliveryRecord> {
    return this.#retries.run(() => this.#redeliver(id));
  }

  async #redeliver(id: string): Promise<DeliveryRecord> {
    const { store, clock, notifier, log, numbers } = this.#context;
    if (notifier === null) throw new HoldfastError("no_webhook");
    const asked = isDeliveryId(id) ? await store.delivery(id) : null;
    if (asked === null) throw new HoldfastError("delivery_not_found");
    if (asked.state !== "dead") return asked;
    const all = await store.deliveries({ alertId: asked.alert.id, state: "dead", limit: PER_ALERT });
    if (this.pending + all.length > numbers.deliveriesPending) {
      const message = `${numbers.deliveriesPending} deliveries are already pending.`;
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
      "retrying dead deliveries",
    );
    // A redelivered message goes before the pending deliveries of the same alert, because it is older than they are.
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

/** The event of a delivery that was given up. */
export const deadDeliveryEvent = ({ id, alert, lastError }: DeliveryRecord, at: number): NewEvent => ({
  at,
  type: "delivery.dead",
  sandboxId: alert.sandboxId ?? undefined,
  message: `A message about the alert ${alert.key} could not be delivered: ${lastError ?? "cause unknown"}`,
  data: { delivery: id, alert: alert.key },
});
