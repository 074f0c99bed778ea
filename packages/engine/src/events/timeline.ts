import {
  type DriveId,
  type Event,
  type EventList,
  HoldfastError,
  isDriveId,
  isSandboxId,
  type Numbers,
  type SandboxId,
} from "@holdfast/contract";
import { invalidCursor } from "../lib/cursor.ts";
import { soonest } from "../lib/deadline.ts";
import { iso } from "../lib/format.ts";
import type { EngineApi, EventPage, EventQuery } from "../ports/api.ts";
import type { Clock, EventFilter, Store, StoredEvent } from "../ports/index.ts";
import type { AnnouncingStore } from "./announcing-store.ts";
import { TimelineTail } from "./timeline-tail.ts";

/** Number of events that a follower reads from the store at a time. */
const PAGE_EVENTS = 200;
/**
 * How long after the end of a time window events of that window may still be committed. Events are timestamped before
 * they are committed.
 */
const LATE_MS = 1_000;

interface Parts {
  clock: Clock;
  numbers: Numbers;
  stopping: AbortSignal;
  registry: { idOf(ref: string): Promise<SandboxId> };
  drives: { find(ref: string): { id: DriveId } };
}

type Wanted = Omit<EventFilter, "limit">;

/**
 * Lists and follows the timeline. A follower consists only of a position. Each commit notifies the follower, which
 * continues reading from its position at its own pace. Commits take effect in the order of their sequence numbers, so a
 * reader that continues after the last event it saw misses nothing and gets nothing twice, across any number of
 * connections and servers. Followers that are up to date share one read; a follower that falls behind reads from the
 * store and delays no other. If retention deletes events that a reader has not read yet, the reader gets an error,
 * because it could not notice the gap.
 */
export class Timeline {
  readonly #news: AnnouncingStore;
  readonly #parts: Parts;
  #tail: TimelineTail | null = null;

  constructor(news: AnnouncingStore, parts: Parts) {
    this.#news = news;
    this.#parts = parts;
  }

  get #store(): Store {
    return this.#news.store;
  }

  async list(query: Parameters<EngineApi["events"]>[0]): Promise<EventList> {
    const { limit, order } = query;
    const wanted = await this.#wanted(query);
    const found = await this.#store.events({ ...wanted, order, limit: limit + 1 });
    if (wanted.after !== undefined && order !== "newest") await this.#checkKept(wanted.after);
    const items = found.slice(0, limit).map(viewEvent);
    return { items, nextCursor: found.length > limit ? String(items.at(-1)?.seq) : null };
  }

  async *follow(query: EventQuery, signal: AbortSignal): AsyncGenerator<EventPage, void, undefined> {
    const { clock, numbers, stopping } = this.#parts;
    using _place = this.#enter();
    const wanted = await this.#wanted(query);
    if (wanted.after !== undefined) await this.#checkKept(wanted.after);
    let after = wanted.after ?? (wanted.since === undefined ? (await this.#store.eventSpan()).last : 0);
    const overAt = wanted.until === undefined ? Number.POSITIVE_INFINITY : wanted.until + LATE_MS;
    const keepaliveMs = numbers.streamKeepaliveMs;
    let sentAt = clock.now();
    yield { events: [], cursor: String(after) };
    for (;;) {
      const now = clock.now();
      const page = await this.#read(wanted, after);
      after = page.after;
      signal.throwIfAborted();
      if (page.events.length > 0 || Math.abs(now - sentAt) >= keepaliveMs * ALMOST) {
        sentAt = now;
        yield { events: page.events.map(viewEvent), cursor: String(after) };
      }
      if (page.isFull) continue;
      if (now >= overAt) return;
      const waitMs = Math.min(keepaliveMs, Math.max(1, overAt - now));
      if (page.commits === this.#news.announced)
        await soonest(clock, waitMs, signal, stopping, this.#news.bell);
      signal.throwIfAborted();
      stopping.throwIfAborted();
    }
  }

  /** Registers a follower; throws if the maximum is reached. Disposing of the result unregisters the follower. */
  #enter(): Disposable {
    const { eventFollowersMax } = this.#parts.numbers;
    if (this.#news.followers >= eventFollowersMax)
      throw new HoldfastError("too_many_readers", {
        message: `${eventFollowersMax} callers already follow the timeline.`,
      });
    this.#news.followers += 1;
    return {
      [Symbol.dispose]: () => {
        this.#news.followers -= 1;
        if (this.#news.followers === 0) this.#tail = null;
      },
    };
  }

  /** Reads the events after a position, and the number of commits at that time. */
  async #read(wanted: Wanted, after: number): Promise<Read> {
    const { last } = this.#tail ?? (await this.#store.eventSpan());
    this.#tail ??= new TimelineTail(this.#store, last);
    const tail = this.#tail;
    if (after >= tail.from) {
      const commits = await tail.catchUp(() => this.#news.announced);
      // The tail may have dropped events during the read, so compare the positions again.
      if (after >= tail.from) return { ...tail.after(after, wanted), commits };
    }
    const commits = this.#news.announced;
    const span = await this.#store.eventSpan();
    const events = await this.#store.events({ ...wanted, after, limit: PAGE_EVENTS });
    await this.#checkKept(after);
    const isFull = events.length === PAGE_EVENTS;
    const seen = events.at(-1)?.seq ?? after;
    return { events, after: isFull ? seen : Math.max(seen, span.last), isFull, commits };
  }

  /**
   * Returns the id of the drive with this id or name. An id is returned unchecked, because the events of a deleted
   * drive can still be found by its id.
   */
  #driveId(ref: string): DriveId {
    return isDriveId(ref) ? ref : this.#parts.drives.find(ref).id;
  }

  async #wanted({ ref, drive, cursor, execId, types, since, until }: EventQuery): Promise<Wanted> {
    return {
      sandboxId: ref === undefined ? undefined : await this.#sandboxId(ref),
      driveId: drive === undefined ? undefined : this.#driveId(drive),
      after: cursor === undefined ? undefined : seqOf(cursor),
      execId,
      types,
      since,
      until,
    };
  }

  /**
   * Returns the id of the sandbox with this id or name. An id without a record is accepted if there are events with it,
   * because the events of a sandbox outlive its record.
   */
  async #sandboxId(ref: string): Promise<SandboxId> {
    try {
      return await this.#parts.registry.idOf(ref);
    } catch (error) {
      if (!isSandboxId(ref)) throw error;
      const [any] = await this.#store.events({ sandboxId: ref, limit: 1 });
      if (any === undefined) throw error;
      return ref;
    }
  }

  /**
   * Throws if events after the position were deleted. Position 0, which the server never returns, stands for the
   * beginning of the retained events.
   */
  async #checkKept(after: number): Promise<void> {
    if (after === 0) return;
    const { first, last } = await this.#store.eventSpan();
    if (after > last)
      throw new HoldfastError("invalid_request", {
        message: "The cursor is ahead of the timeline: it comes from another server.",
      });
    if (after >= first - 1) return;
    const floor = String(first - 1);
    const message = `Events after that cursor were deleted; resume from ${floor}.`;
    throw new HoldfastError("events_dropped", { floor, message });
  }
}

interface Read {
  events: readonly StoredEvent[];
  /** The position of the last event that was examined, whether it matched or not. */
  after: number;
  /** Whether the page is full, in which case more events may be available at once. */
  isFull: boolean;
  /** Number of commits with events at the time of the read. */
  commits: number;
}

/**
 * Share of the keepalive interval after which a keepalive is sent. It is less than 1 because a wait may end slightly
 * early, and the keepalive would then be delayed by another interval.
 */
const ALMOST = 0.9;

function seqOf(cursor: string): number {
  if (/^\d{1,15}$/.test(cursor)) return Number(cursor);
  throw invalidCursor();
}

const viewEvent = (event: StoredEvent): Event => ({ ...event, at: iso(event.at) });
