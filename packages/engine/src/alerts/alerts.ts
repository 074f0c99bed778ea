import { type AlertList, causeOf, type Delivery, type DeliveryList, SEVERITIES } from "@holdfast/contract";
import { AlertReadings, type ReadingParts } from "./alert-readings.ts";
import {
  type AlertChange,
  type AlertState,
  evaluate,
  keyOf,
  limitsOf,
  livedMs,
  NOTHING_WRONG,
  type Readings,
  RULES,
  type Track,
} from "./alert-rules.ts";
import { viewAlert, viewDelivery } from "./alert-view.ts";
import type { AlertApi, AlertFigures } from "./api.ts";
import { deathOf, Outbox } from "./outbox.ts";
import type { Change, NewEvent } from "./ports.ts";
import type { AlertRecord, DeliveryRecord, ExecRecord } from "./records.ts";
import { TimeoutWindow } from "./timeout-window.ts";
import type { World } from "./world.ts";

/** Alerts that are stored in one commit, so that a bad hour doesn't keep others from the database for long. */
const STORED_AT_ONCE = 100;
/** Of those that have cleared. */
const LISTED = 1_000;

/**
 * Says by itself what a person on call would look for. Every few seconds the figures are taken and compared with the rules;
 * what fires or clears is stored in one commit with its event and with the messages about it, and holds from then on: a
 * change that could not be stored has not happened, and is found again in the next round. So a restart neither loses an
 * alert nor tells of it twice. Nothing is done about anything here: alerts are for people, and other parts act.
 */
export class Alerts implements AlertApi {
  readonly #world: World;
  readonly #timeouts: TimeoutWindow;
  readonly #readings: AlertReadings;
  readonly #outbox: Outbox;
  #state: AlertState = NOTHING_WRONG;
  /** Those that fire, by key. */
  readonly #firing = new Map<string, AlertRecord>();
  #taken: Readings = {};

  constructor(world: World, parts: Omit<ReadingParts, "timeouts" | "deadDeliveries">) {
    this.#world = world;
    const timeouts = new TimeoutWindow(world.numbers);
    const outbox = new Outbox(world);
    const deadDeliveries = async () => (await outbox.counts()).dead;
    this.#timeouts = timeouts;
    this.#outbox = outbox;
    this.#readings = new AlertReadings(world, { ...parts, timeouts, deadDeliveries });
  }

  /** To be told of every exec that ended. */
  ended({ sandboxId, status }: ExecRecord): void {
    const timedOut = status === "timed_out" ? 1 : 0;
    this.#timeouts.count({ at: this.#world.clock.now(), sandboxId, ended: 1, timedOut });
  }

  /** Takes up what fires, and what ended lately; before anything else can end. */
  async load(): Promise<void> {
    const { clock, store } = this.#world;
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
    const { clock, numbers, stopping, log } = this.#world;
    while (!stopping.aborted) {
      await this.evaluate().catch((error: unknown) => {
        if (!stopping.aborted) log.error({ cause: causeOf(error) }, "alerts could not be evaluated");
      });
      await clock.sleep(numbers.alertEveryMs, stopping).catch(() => undefined);
    }
  }

  async evaluate(): Promise<void> {
    const { clock, numbers } = this.#world;
    const before = this.#state;
    const now = clock.now();
    const readings = await this.#readings.take(livedMs(before.at, now, numbers));
    const { state, changes } = evaluate(before, readings, now, numbers);
    this.#taken = readings;
    this.#refresh(readings);
    const tracks = new Map(state.tracks);
    this.#state = { at: now, tracks };
    for (let at = 0; at < changes.length; at += STORED_AT_ONCE) {
      const some = changes.slice(at, at + STORED_AT_ONCE);
      if (await this.#store(some, now)) continue;
      for (const { key } of some) put(tracks, key, before.tracks.get(key));
    }
  }

  /** What fires is told with the figure as it is now. */
  #refresh(readings: Readings): void {
    for (const reading of Object.values(readings).flatMap((read) => read ?? [])) {
      const record = this.#firing.get(keyOf(reading));
      if (record === undefined || reading.value === null) continue;
      this.#firing.set(record.key, { ...record, value: reading.value, message: reading.message });
    }
  }

  async #store(changes: readonly AlertChange[], now: number): Promise<boolean> {
    const { store, log } = this.#world;
    const records = changes.flatMap((change) => this.#recordOf(change, now) ?? []);
    const deliveries = this.#outbox.plan(records);
    try {
      await store.commit({
        changes: [
          ...records.map(changeOf),
          ...deliveries.map((record) => ({ kind: "delivery.insert", record }) as const),
        ],
        events: [...records.map(eventOf), ...deathsAmong(deliveries, now)],
      });
    } catch (error) {
      log.error({ cause: causeOf(error) }, "a change of alerts could not be stored; it is looked for again");
      return false;
    }
    for (const record of records) this.#note(record);
    this.#outbox.add(deliveries);
    return true;
  }

  /** Null where there is nothing to clear: its record could not be read when the server started. */
  #recordOf({ type, key, kind, subject, reading }: AlertChange, now: number): AlertRecord | null {
    const { ids, numbers } = this.#world;
    const { severity, unit, calm } = RULES[kind];
    if (type === "cleared") {
      const fired = this.#firing.get(key);
      const message = reading?.message ?? calm;
      return fired === undefined ? null : { ...fired, message, value: reading?.value ?? 0, clearedAt: now };
    }
    const { threshold, clearBelow, target } = limitsOf(kind, subject, numbers);
    const figures = { unit, value: reading?.value ?? threshold, threshold, clearBelow, target };
    const about = { sandboxId: reading?.sandboxId ?? null, message: reading?.message ?? "" };
    return { id: ids.alert(), key, kind, severity, ...about, ...figures, firedAt: now, clearedAt: null };
  }

  #note(record: AlertRecord): void {
    const { key, kind, severity, value, message, clearedAt } = record;
    const { log } = this.#world;
    const fields = { alert: key, alertKind: kind, severity, value, sandbox: record.sandboxId };
    if (clearedAt === null) {
      this.#firing.set(key, record);
      log.warn(fields, `alert fires: ${message}`);
    } else {
      this.#firing.delete(key);
      log.info(fields, `alert cleared: ${message}`);
    }
  }

  /** The worst first, then the newest. */
  async list({ cleared }: { cleared: boolean }): Promise<AlertList> {
    const firing = [...this.#firing.values()].sort((a, b) => rank(b) - rank(a) || b.firedAt - a.firedAt);
    const past = cleared ? await this.#world.store.alerts({ state: "cleared", limit: LISTED }) : [];
    const { at } = this.#state;
    return {
      items: [...firing, ...past].map(viewAlert),
      evaluatedAt: at === null ? null : new Date(at).toISOString(),
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
    return { evaluatedAt: this.#state.at, firing, readings: this.#taken, deliveries };
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

const deathsAmong = (deliveries: readonly DeliveryRecord[], now: number): NewEvent[] =>
  deliveries.filter(({ state }) => state === "dead").map((record) => deathOf(record, now));
