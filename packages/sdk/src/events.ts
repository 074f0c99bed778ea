import type { EventFilter, EventSubject, Events, FollowOptions, Moment } from "./api.ts";
import { EventsDroppedError, errorOf, HoldfastError, unexpected, unreachable } from "./errors.ts";
import { type Call, type Calls, STREAM_SILENCE_MS } from "./transport/calls.ts";
import { NDJSON_TYPE, recordsOf } from "./transport/ndjson.ts";
import { ERROR_STATUSES, type ErrorBody, type Event } from "./types.generated.ts";

export const momentOf = (moment: Moment | undefined): string | undefined =>
  moment instanceof Date ? moment.toISOString() : moment;

export const eventsOf = (calls: Calls): Events => ({
  list({ order, limit, cursor, signal, ...filter }: EventFilter & EventSubject = {}) {
    const { sandbox, drive, exec, types, since, until, ...unknown } = filter;
    const selected = queryOf({ sandbox, drive, exec, types, since, until });
    const query = { ...selected, order, limit, cursor };
    return calls.json({ method: "GET", path: "/v1/events", query, idempotent: true, signal, unknown });
  },
  follow: (options = {}) => new EventFollower(calls, options).events(),
});

type Filter = Pick<FollowOptions, "sandbox" | "drive" | "exec" | "types" | "since" | "until">;

const queryOf = ({ sandbox, drive, exec, types, since, until }: Filter) => ({
  ...{ sandbox, drive, exec, type: types },
  ...{ since: momentOf(since), until: momentOf(until) },
});

/**
 * Records of an event stream. All records except `end` carry the position that the stream has reached. An `end` without
 * an error means that `until` was reached.
 */
type EventRecord =
  | { type: "start" | "keepalive"; cursor: string }
  | { type: "event"; cursor: string; event: Event }
  | { type: "end"; error: ErrorBody["error"] | null };

/**
 * Follows the timeline over any number of connections. A connection that breaks, falls silent or ends without an `end`
 * record is replaced by a new one, which starts after the last record received, so no record is missed or repeated.
 * Retries have a time limit, which restarts when an outage has ended. A `start` record alone does not end an outage: a
 * server that only ever sends `start` and closes the connection would keep the reader retrying forever.
 */
class EventFollower {
  readonly #calls: Calls;
  readonly #options: FollowOptions;
  /** Position at which the next connection resumes. */
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
        if (this.#options.signal?.aborted !== true) this.#say("lost");
        await outage.failed(error);
      }
    }
  }

  #call(): Call {
    const { signal, sandbox, drive, exec, types, since, until, ...rest } = this.#options;
    const { cursor: _cursor, onDropped: _onDropped, onConnection: _onConnection, ...unknown } = rest;
    return {
      method: "GET",
      path: "/v1/events",
      query: { ...queryOf({ sandbox, drive, exec, types, since, until }), cursor: this.#cursor },
      headers: { accept: NDJSON_TYPE },
      type: NDJSON_TYPE,
      idempotent: true,
      waiting: true,
      silenceMs: STREAM_SILENCE_MS,
      signal,
      unknown,
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

  /**
   * Handles an error of the stream. If events were deleted and the caller chose `onDropped: "skip"`, moves the cursor
   * to the oldest event kept and returns true. Otherwise returns false.
   */
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
