import type { EventFilter, Store, StoredEvent } from "../ports/index.ts";

/** Number of newest events that are kept in memory for followers; also the number read from the store at a time. */
const TAIL_EVENTS = 1_000;

/**
 * The newest events of the timeline, shared by all followers that are up to date, so that a commit costs one read of
 * the store for any number of followers. It contains every event after `from`. Events are only ever appended.
 */
export class TimelineTail {
  readonly #store: Store;
  #events: StoredEvent[] = [];
  #from: number;
  #last: number;
  /**
   * How many commits with events there had been when the last complete read began. A read is complete if it reached the
   * end of the timeline.
   */
  #commitsRead = Number.NEGATIVE_INFINITY;
  #reading: Promise<void> | null = null;

  constructor(store: Store, last: number) {
    this.#store = store;
    this.#from = last;
    this.#last = last;
  }

  /**
   * The position after which the tail contains all events. A follower at an earlier position must read from the store.
   */
  get from(): number {
    return this.#from;
  }
  /** The position of the newest event that was read. */
  get last(): number {
    return this.#last;
  }

  /**
   * Reads new events. Returns the number of commits whose events the tail includes. Concurrent callers share one read.
   */
  async catchUp(commits: () => number): Promise<number> {
    if (this.#commitsRead === commits()) return this.#commitsRead;
    this.#reading ??= this.#readOn(commits()).finally(() => {
      this.#reading = null;
    });
    await this.#reading;
    return this.#commitsRead;
  }

  async #readOn(commits: number): Promise<void> {
    const { last } = await this.#store.eventSpan();
    const news = await this.#store.events({ after: this.#last, limit: TAIL_EVENTS });
    const isAll = news.length < TAIL_EVENTS;
    const seen = news.at(-1)?.seq ?? this.#last;
    this.#last = isAll ? Math.max(seen, last) : seen;
    this.#events.push(...news);
    const gone = this.#events.splice(0, Math.max(0, this.#events.length - TAIL_EVENTS));
    this.#from = gone.at(-1)?.seq ?? this.#from;
    // If not all events were read, the number of commits stays unchanged, so that the next call reads again.
    if (isAll) this.#commitsRead = commits;
  }

  after(after: number, wanted: Wanted): { events: StoredEvent[]; after: number; isFull: false } {
    const events = this.#events.filter((event) => event.seq > after && matches(event, wanted));
    return { events, after: Math.max(after, this.#last), isFull: false };
  }
}

type Wanted = Omit<EventFilter, "limit">;

/** Whether the event matches the filter, by the same rules as in the store. */
function matches(event: StoredEvent, { sandboxId, execId, driveId, types, since, until }: Wanted): boolean {
  return (
    (sandboxId === undefined || event.sandboxId === sandboxId) &&
    (execId === undefined || event.execId === execId) &&
    (driveId === undefined || event.driveId === driveId) &&
    (types === undefined || types.includes(event.type)) &&
    (since === undefined || event.at >= since) &&
    (until === undefined || event.at < until)
  );
}
