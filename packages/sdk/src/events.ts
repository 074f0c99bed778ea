import type { EventFilter, EventSubject, Events, FollowOptions, Moment } from "./api.ts";
import { type Call, type Calls, STREAM_SILENCE_MS } from "./calls.ts";
import { EventsDroppedError, errorOf, HoldfastError, unexpected, unreachable } from "./errors.ts";
import { NDJSON_TYPE, recordsOf } from "./ndjson.ts";
import { ERROR_STATUSES, type ErrorBody, type Event } from "./types.generated.ts";

export const momentOf = (moment: Moment | undefined): string | undefined =>
  moment instanceof Date ? moment.toISOString() : moment;

export const eventsOf = (calls: Calls): Events => ({
  list: ({ order, limit, cursor, signal, ...filter }: EventFilter & EventSubject = {}) =>
    calls.json({
      method: "GET",
      path: "/v1/events",
      query: { ...queryOf(filter), order, limit, cursor },
      idempotent: true,
      signal,
    }),
  follow: (options = {}) => new EventFollower(calls, options).events(),
});

type Filter = Pick<FollowOptions, "sandbox" | "drive" | "exec" | "types" | "since" | "until">;

const queryOf = ({ sandbox, drive, exec, types, since, until }: Filter) => ({
  ...{ sandbox, drive, exec, type: types },
  ...{ since: momentOf(since), until: momentOf(until) },
});

/** All but the `end` say up to where all was told. An `end` without an error is that of `until`. */
type EventRecord =
  | { type: "start" | "keepalive"; cursor: string }
  | { type: "event"; cursor: string; event: Event }
  | { type: "end"; error: ErrorBody["error"] | null };

/**
 * Follows the timeline over as many connections as that takes. One that breaks, falls silent or ends without an `end` is
 * taken up again behind the last record that came: no gap, no repetition. Only what follows a `start` ends an outage, so that a server
 * which greets and hangs up can't hold the reader for ever.
 */
class EventFollower {
  readonly #calls: Calls;
  readonly #options: FollowOptions;
  /** Where the next connection goes on. */
  #cursor: string | undefined;
  #isOpen = false;

  constructor(calls: Calls, options: FollowOptions) {
    this.#calls = calls;
    this.#options = options;
    this.#cursor = options.cursor;
  }

  async *events(): AsyncGenerator<Event, void, undefined> {
    const outage = this.#calls.outage(this.#call());
    for (;;) {
      try {
        for await (const record of this.#records()) {
          if (record.type === "end") {
            if (record.error === null) return;
            throw this.#failed(record.error);
          }
          this.#cursor = record.cursor;
          if (record.type === "start") this.#say("open");
          else outage.over();
          if (record.type === "event") yield record.event;
        }
        throw this.#cutShort();
      } catch (error) {
        if (this.#skips(error)) continue;
        this.#say("lost");
        await outage.failed(error);
      }
    }
  }

  #call(): Call {
    const { signal } = this.#options;
    return {
      method: "GET",
      path: "/v1/events",
      query: { ...queryOf(this.#options), cursor: this.#cursor },
      headers: { accept: NDJSON_TYPE },
      type: NDJSON_TYPE,
      idempotent: true,
      waiting: true,
      silenceMs: STREAM_SILENCE_MS,
      signal,
    };
  }

  async *#records(): AsyncGenerator<EventRecord, void, undefined> {
    const reply = await this.#calls.open(this.#call());
    try {
      for await (const record of recordsOf(reply.stream())) yield record as EventRecord;
    } catch (error) {
      if (!(error instanceof SyntaxError || error instanceof RangeError)) throw error;
      throw new HoldfastError({ ...unexpected(this.#where(), reply.status, ""), cause: error });
    }
  }

  /** Goes on from the first that is kept, where that is what the caller wants. */
  #skips(error: unknown): boolean {
    if (!(error instanceof EventsDroppedError) || this.#options.onDropped !== "skip") return false;
    if (error.floor === null || error.floor === this.#cursor) return false;
    this.#cursor = error.floor;
    return true;
  }

  #say(state: "open" | "lost"): void {
    if (this.#isOpen === (state === "open")) return;
    this.#isOpen = state === "open";
    this.#options.onConnection?.(state);
  }

  #failed(error: ErrorBody["error"]): HoldfastError {
    return errorOf(this.#where(), ERROR_STATUSES[error.code] ?? 500, JSON.stringify({ error }));
  }

  #cutShort(): HoldfastError {
    return unreachable(this.#where(), "yes", new Error("the stream ended"));
  }

  #where() {
    return this.#calls.where(this.#call());
  }
}
