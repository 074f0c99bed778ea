import {
  type DriveId,
  type Event,
  type EventList,
  HoldfastError,
  isSandboxId,
  type Numbers,
  type SandboxId,
} from "@holdfast/contract";
import type { EngineApi, EventPage, EventQuery } from "./api.ts";
import { soonest } from "./clock.ts";
import { EventTail } from "./event-tail.ts";
import type { Clock, EventFilter, Store, StoredEvent } from "./ports.ts";

/** What one look into the store brings a follower. */
const PAGE_EVENTS = 200;
/** An event is dated when it is decided and stored a moment later: until then a time is not over. */
const LATE_MS = 1_000;

interface Parts {
  clock: Clock;
  numbers: Numbers;
  stopping: AbortSignal;
  /** The sandbox that a reference means, gone ones by id. */
  sandboxId(ref: string): Promise<SandboxId>;
  driveId(ref: string): DriveId;
}

type Wanted = Omit<EventFilter, "limit">;

/**
 * The timeline, to be listed and followed. A follower has nothing but its position: it is told that there is news, and
 * reads on from there, at its own pace. Commits take effect in the order of their seqs, so whoever reads what lies behind
 * the last one seen misses nothing and gets nothing twice, over any number of connections and servers. Those who are up to
 * date share what was read for one of them; one who falls behind reads from the store again, and slows nobody. Only retention can
 * overtake a reader: then it is told, because a gap would look like nothing had happened.
 */
export class EventFeed {
  /** What the engine writes through: each commit that tells something wakes those who follow. */
  readonly store: Store;
  readonly #parts: Parts;
  #followers = 0;
  #tail: EventTail | null = null;
  /** Commits that told something, so far. */
  #told = 0;
  #bell = new AbortController();

  constructor(store: Store, parts: Parts) {
    this.#parts = parts;
    const commit: Store["commit"] = async (given) => {
      await store.commit(given);
      if (given.events?.length) this.#ring();
    };
    const verbs = new Map<PropertyKey, unknown>([["commit", commit]]);
    this.store = new Proxy(store, {
      get(_, key) {
        if (verbs.has(key)) return verbs.get(key);
        const value: unknown = Reflect.get(store, key, store);
        if (typeof value !== "function") return value;
        verbs.set(key, value.bind(store));
        return verbs.get(key);
      },
    });
  }

  #ring(): void {
    this.#told += 1;
    if (this.#followers === 0) return;
    const bell = this.#bell;
    this.#bell = new AbortController();
    bell.abort();
  }

  async list(query: Parameters<EngineApi["events"]>[0]): Promise<EventList> {
    const { limit, order } = query;
    const wanted = await this.#wanted(query);
    const found = await this.store.events({ ...wanted, order, limit: limit + 1 });
    if (wanted.after !== undefined && order !== "newest") await this.#checkKept(wanted.after);
    const items = found.slice(0, limit).map(viewEvent);
    return { items, nextCursor: found.length > limit ? String(items.at(-1)?.seq) : null };
  }

  async *follow(query: EventQuery, signal: AbortSignal): AsyncGenerator<EventPage, void, undefined> {
    const { clock, numbers, stopping } = this.#parts;
    using _place = this.#enter();
    const wanted = await this.#wanted(query);
    if (wanted.after !== undefined) await this.#checkKept(wanted.after);
    let after = wanted.after ?? (wanted.since === undefined ? (await this.store.eventSpan()).last : 0);
    const overAt = wanted.until === undefined ? Number.POSITIVE_INFINITY : wanted.until + LATE_MS;
    const keepaliveMs = numbers.streamKeepaliveMs;
    let toldAt = clock.now();
    yield { events: [], cursor: String(after) };
    for (;;) {
      const now = clock.now();
      const page = await this.#read(wanted, after);
      after = page.after;
      signal.throwIfAborted();
      if (page.events.length > 0 || Math.abs(now - toldAt) >= keepaliveMs * ALMOST) {
        toldAt = now;
        yield { events: page.events.map(viewEvent), cursor: String(after) };
      }
      if (page.isFull) continue;
      if (now >= overAt) return;
      const waitMs = Math.min(keepaliveMs, Math.max(1, overAt - now));
      if (page.heard === this.#told) await soonest(clock, waitMs, signal, stopping, this.#bell.signal);
      signal.throwIfAborted();
      stopping.throwIfAborted();
    }
  }

  /** A place among those who follow, or a refusal; it is given back by disposing of it. */
  #enter(): Disposable {
    const { eventFollowersMax } = this.#parts.numbers;
    if (this.#followers >= eventFollowersMax)
      throw new HoldfastError("too_many_readers", {
        message: `${eventFollowersMax} callers follow the timeline already.`,
      });
    this.#followers += 1;
    return {
      [Symbol.dispose]: () => {
        this.#followers -= 1;
        if (this.#followers === 0) this.#tail = null;
      },
    };
  }

  /** What lies behind a position, with how much had been told when it was looked for. */
  async #read(wanted: Wanted, after: number): Promise<Read> {
    const { last } = this.#tail ?? (await this.store.eventSpan());
    this.#tail ??= new EventTail(this.store, last);
    const tail = this.#tail;
    if (after >= tail.from) {
      const heard = await tail.catchUp(() => this.#told);
      // It moves on with who is quickest.
      if (after >= tail.from) return { ...tail.behind(after, wanted), heard };
    }
    const heard = this.#told;
    const span = await this.store.eventSpan();
    const events = await this.store.events({ ...wanted, after, limit: PAGE_EVENTS });
    await this.#checkKept(after);
    const isFull = events.length === PAGE_EVENTS;
    const seen = events.at(-1)?.seq ?? after;
    return { events, after: isFull ? seen : Math.max(seen, span.last), isFull, heard };
  }

  async #wanted({ ref, drive, cursor, execId, types, since, until }: EventQuery): Promise<Wanted> {
    return {
      sandboxId: ref === undefined ? undefined : await this.#sandboxId(ref),
      driveId: drive === undefined ? undefined : this.#parts.driveId(drive),
      after: cursor === undefined ? undefined : seqOf(cursor),
      execId,
      types,
      since,
      until,
    };
  }

  /** What is told of a sandbox outlives its record, under its id. */
  async #sandboxId(ref: string): Promise<SandboxId> {
    try {
      return await this.#parts.sandboxId(ref);
    } catch (error) {
      if (!isSandboxId(ref)) throw error;
      const [any] = await this.store.events({ sandboxId: ref, limit: 1 });
      if (any === undefined) throw error;
      return ref;
    }
  }

  /** Whether nothing is missing behind a position. 0 is none that anybody was given, and means: all that is kept. */
  async #checkKept(after: number): Promise<void> {
    if (after === 0) return;
    const { first, last } = await this.store.eventSpan();
    if (after > last)
      throw new HoldfastError("invalid_request", {
        message: "The cursor is ahead of all that happened here: it is another server's.",
      });
    if (after >= first - 1) return;
    const floor = String(first - 1);
    const message = `Events behind that cursor are no longer kept; go on from ${floor}.`;
    throw new HoldfastError("events_dropped", { floor, message });
  }
}

interface Read {
  events: readonly StoredEvent[];
  /** Behind all that was looked at. */
  after: number;
  /** There may be more that can be read at once. */
  isFull: boolean;
  heard: number;
}

/** A wait that ends a moment early must not double the next. */
const ALMOST = 0.9;

function seqOf(cursor: string): number {
  if (/^\d{1,15}$/.test(cursor)) return Number(cursor);
  throw new HoldfastError("invalid_request", { message: "The cursor is not valid." });
}

const viewEvent = (event: StoredEvent): Event => ({ ...event, at: new Date(event.at).toISOString() });
