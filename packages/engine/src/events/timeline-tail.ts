import type { EventFilter, Store, StoredEvent } from "./ports.ts";

/** The newest events that are held in memory for those who follow, and what one look into the store adds to them. */
const TAIL_EVENTS = 1_000;

/**
 * The end of the timeline, read once for all who are up to date: however many follow, a commit costs one look into the
 * store. It holds everything behind `from`, and nothing is ever put between what it holds.
 */
export class EventTail {
  readonly #store: Store;
  #events: StoredEvent[] = [];
  #from: number;
  #last: number;
  /** How much had been told when it was last read. */
  #heard = Number.NEGATIVE_INFINITY;
  #reading: Promise<void> | null = null;

  constructor(store: Store, last: number) {
    this.#store = store;
    this.#from = last;
    this.#last = last;
  }

  /** Who is not past this has to ask the store. */
  get from(): number {
    return this.#from;
  }
  /** Up to here everything is known. */
  get last(): number {
    return this.#last;
  }

  /** Reads what was told since; answers up to which it is known then. Callers at the same time share one read. */
  async catchUp(told: () => number): Promise<number> {
    if (this.#heard === told()) return this.#heard;
    this.#reading ??= this.#readOn(told()).finally(() => {
      this.#reading = null;
    });
    await this.#reading;
    return this.#heard;
  }

  async #readOn(told: number): Promise<void> {
    const { last } = await this.#store.eventSpan();
    const news = await this.#store.events({ after: this.#last, limit: TAIL_EVENTS });
    const isAll = news.length < TAIL_EVENTS;
    const seen = news.at(-1)?.seq ?? this.#last;
    this.#last = isAll ? Math.max(seen, last) : seen;
    this.#events.push(...news);
    const gone = this.#events.splice(0, Math.max(0, this.#events.length - TAIL_EVENTS));
    this.#from = gone.at(-1)?.seq ?? this.#from;
    // Where there is more it is asked for again at once.
    if (isAll) this.#heard = told;
  }

  behind(after: number, wanted: Wanted): { events: StoredEvent[]; after: number; isFull: false } {
    const events = this.#events.filter((event) => event.seq > after && matches(event, wanted));
    return { events, after: Math.max(after, this.#last), isFull: false };
  }
}

type Wanted = Omit<EventFilter, "limit">;

/** As the store understands it. */
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
