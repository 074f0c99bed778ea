import { type AlertList, causeOf, type Delivery, type DeliveryList, SEVERITIES } from "@holdfast/contract";
import { iso } from "../lib/format.ts";
import type { EngineEvents } from "../live/engine-events.ts";
import type { AlertApi, AlertFigures, Readings } from "../ports/api.ts";
import type { EngineContext } from "../ports/context.ts";
import type { Change, NewEvent } from "../ports/index.ts";
import type { AlertRecord, DeliveryRecord, ExecRecord } from "../ports/records.ts";
import { deadDeliveryEvent, Outbox } from "./delivery-outbox.ts";
import { AlertReadings, type ReadingParts } from "./readings.ts";
import {
  type AlertChange,
  type AlertState,
  elapsedMs,
  evaluate,
  keyOf,
  limitsOf,
  NOTHING_WRONG,
  RULES,
  type Track,
} from "./rules.ts";
import { TimeoutWindow } from "./timeout-window.ts";
import { viewAlert, viewDelivery } from "./view.ts";

/** Maximum number of alerts in one commit, so that a burst of alerts does not block other commits for long. */
const STORED_AT_ONCE = 100;
/** Maximum number of cleared alerts in a listing. */
const LISTED = 1_000;

/**
 * Raises alerts for conditions that a person on call should know of. Every few seconds it takes the readings and
 * compares them with the rules. Each change of an alert is stored in one commit with its event and its deliveries. The
 * change takes effect with that commit: if it could not be stored, it has no effect, and the next round detects it
 * again. So a restart neither loses an alert nor reports it twice. Alerts are for people; no alert triggers an action.
 */
export class Alerts implements AlertApi {
  readonly #context: EngineContext;
  readonly #timeouts: TimeoutWindow;
  readonly #readings: AlertReadings;
  readonly #outbox: Outbox;
  #state: AlertState = NOTHING_WRONG;
  /** Firing alerts by key. */
  readonly #firing = new Map<string, AlertRecord>();
  #lastReadings: Readings = {};

  constructor(
    context: EngineContext,
    { events, ...parts }: Omit<ReadingParts, "timeouts" | "deadDeliveries"> & { events: EngineEvents },
  ) {
    this.#context = context;
    const timeouts = new TimeoutWindow(context.numbers);
    const outbox = new Outbox(context);
    const deadDeliveries = async () => (await outbox.counts()).dead;
    this.#timeouts = timeouts;
    this.#outbox = outbox;
    this.#readings = new AlertReadings(context, { ...parts, timeouts, deadDeliveries });
    events.execEnded.subscribe((record) => this.#ended(record));
  }

  /** Counts an ended exec. Must be called for every exec that ends. */
  #ended({ sandboxId, status }: ExecRecord): void {
    const timedOut = status === "timed_out" ? 1 : 0;
    this.#timeouts.count({ at: this.#context.clock.now(), sandboxId, ended: 1, timedOut });
  }

  /** Loads the firing alerts and the recently ended execs. Must finish before any exec can end. */
  async load(): Promise<void> {
    const { clock, store } = this.#context;
    const since = this.#timeouts.since(clock.now());
    for (const ends of await store.execEnds(since, this.#timeouts.stepMs)) this.#timeouts.count(ends);
    const limit = Number.MAX_SAFE_INTEGER;
    const records = await store.alerts({ state: "firing", limit });
    for (const record of records) this.#firing.set(record.key, record);
    const tracks = records.map((record): [string, Track] => [record.key, firingOf(record)]);
    this.#state = { at: null, tracks: new Map(tracks) };
    this.#readings.resume(records);
    await this.#outbox.load();
  }

  async run(): Promise<void> {
    await Promise.all([this.#outbox.run(), this.#watch()]);
  }

  async #watch(): Promise<void> {
    const { clock, numbers, stopping, log } = this.#context;
    while (!stopping.aborted) {
      await this.evaluate().catch((error: unknown) => {
        if (!stopping.aborted) log.error({ cause: causeOf(error) }, "failed to evaluate alerts");
      });
      await clock.sleep(numbers.alertEveryMs, stopping).catch(() => undefined);
    }
  }

  async evaluate(): Promise<void> {
    const { clock, numbers } = this.#context;
    const before = this.#state;
    const now = clock.now();
    const readings = await this.#readings.take(elapsedMs(before.at, now, numbers));
    const { state, changes } = evaluate(before, readings, now, numbers);
    this.#lastReadings = readings;
    this.#refresh(readings);
    const tracks = new Map(state.tracks);
    this.#state = { at: now, tracks };
    for (let at = 0; at < changes.length; at += STORED_AT_ONCE) {
      const some = changes.slice(at, at + STORED_AT_ONCE);
      if (await this.#store(some, now)) continue;
      for (const { key } of some) put(tracks, key, before.tracks.get(key));
    }
  }

  /** Updates firing alerts with the current values. */
  #refresh(readings: Readings): void {
    for (const reading of Object.values(readings).flatMap((read) => read ?? [])) {
      const record = this.#firing.get(keyOf(reading));
      if (record === undefined || reading.value === null) continue;
      this.#firing.set(record.key, { ...record, value: reading.value, message: reading.message });
    }
  }

  async #store(changes: readonly AlertChange[], now: number): Promise<boolean> {
    const { store, log } = this.#context;
    const records = changes.flatMap((change) => this.#recordOf(change, now) ?? []);
    const deliveries = this.#outbox.plan(records);
    try {
      await store.commit({
        changes: [
          ...records.map(changeOf),
          ...deliveries.map((record) => ({ kind: "delivery.insert", record }) as const),
        ],
        events: [...records.map(eventOf), ...deadDeliveryEvents(deliveries, now)],
      });
    } catch (error) {
      log.error({ cause: causeOf(error) }, "failed to store alert changes; retrying at the next evaluation");
      return false;
    }
    for (const record of records) this.#note(record);
    this.#outbox.add(deliveries);
    return true;
  }

  /**
   * Returns the record to store for a change. Returns null for a cleared alert whose record could not be read at
   * startup: there is nothing to clear.
   */
  #recordOf({ type, key, kind, subject, reading }: AlertChange, now: number): AlertRecord | null {
    const { ids, numbers } = this.#context;
    const { severity, unit, clearedMessage } = RULES[kind];
    if (type === "cleared") {
      const fired = this.#firing.get(key);
      const message = reading?.message ?? clearedMessage;
      return fired === undefined ? null : { ...fired, message, value: reading?.value ?? 0, clearedAt: now };
    }
    const { threshold, clearBelow, target } = limitsOf(kind, subject, numbers);
    const figures = { unit, value: reading?.value ?? threshold, threshold, clearBelow, target };
    const about = { sandboxId: reading?.sandboxId ?? null, message: reading?.message ?? "" };
    return { id: ids.alert(), key, kind, severity, ...about, ...figures, firedAt: now, clearedAt: null };
  }

  #note(record: AlertRecord): void {
    const { key, kind, severity, value, message, clearedAt } = record;
    const { log } = this.#context;
    const fields = { alert: key, alertKind: kind, severity, value, sandbox: record.sandboxId };
    if (clearedAt === null) {
      this.#firing.set(key, record);
      log.warn(fields, `alert fired: ${message}`);
    } else {
      this.#firing.delete(key);
      log.info(fields, `alert cleared: ${message}`);
    }
  }

  /** Returns the alerts sorted by severity, the most severe first, and then by time, the newest first. */
  async list({ cleared }: { cleared: boolean }): Promise<AlertList> {
    const firing = [...this.#firing.values()].sort((a, b) => rank(b) - rank(a) || b.firedAt - a.firedAt);
    const past = cleared ? await this.#context.store.alerts({ state: "cleared", limit: LISTED }) : [];
    const { at } = this.#state;
    return {
      items: [...firing, ...past].map(viewAlert),
      evaluatedAt: iso(at),
    };
  }

  deliveries(filter: Parameters<AlertApi["deliveries"]>[0]): Promise<DeliveryList> {
    return this.#outbox.list(filter);
  }

  async redeliver(id: string): Promise<Delivery> {
    return viewDelivery(await this.#outbox.redeliver(id));
  }

  async figures(): Promise<AlertFigures> {
    const byKind = Map.groupBy(this.#firing.values(), ({ kind }) => kind);
    const firing = [...byKind].map(([kind, records]) => ({
      kind,
      severity: RULES[kind].severity,
      count: records.length,
    }));
    const deliveries = await this.#outbox.counts();
    return { evaluatedAt: this.#state.at, firing, readings: this.#lastReadings, deliveries };
  }
}

const firingOf = ({ key, kind }: AlertRecord): Track => ({
  kind,
  subject: key === kind ? null : key.slice(kind.length + 1),
  stage: "firing",
  calmMs: null,
});

function put(tracks: Map<string, Track>, key: string, track: Track | undefined): void {
  if (track === undefined) tracks.delete(key);
  else tracks.set(key, track);
}

const changeOf = (record: AlertRecord): Change => ({
  kind: record.clearedAt === null ? "alert.fire" : "alert.clear",
  record,
});

const rank = ({ severity }: AlertRecord): number => SEVERITIES.indexOf(severity);

const eventOf = ({ id, key, kind, severity, value, sandboxId, message, ...rest }: AlertRecord): NewEvent => ({
  at: rest.clearedAt ?? rest.firedAt,
  type: rest.clearedAt === null ? "alert.fired" : "alert.cleared",
  sandboxId: sandboxId ?? undefined,
  message,
  data: { alert: id, key, kind, severity, value, threshold: rest.threshold },
});

const deadDeliveryEvents = (deliveries: readonly DeliveryRecord[], now: number): NewEvent[] =>
  deliveries.filter(({ state }) => state === "dead").map((record) => deadDeliveryEvent(record, now));
