import { type Call, type Calls, type Outage, STREAM_SILENCE_MS } from "./calls.ts";
import { errorOf, HoldfastError, unexpected, unreachable } from "./errors.ts";
import { NDJSON_TYPE, recordsOf } from "./ndjson.ts";
import type { WireReply } from "./transport.ts";
import { ERROR_STATUSES, type ErrorBody, type FileChange } from "./types.generated.ts";

/** The first one says that nothing is missed from there on, the last one why there is nothing more. */
type WatchRecord =
  | { type: "start"; path: string }
  | ({ type: "change" } & FileChange)
  | { type: "keepalive" }
  | { type: "end"; error: ErrorBody["error"] };

type Records = AsyncGenerator<WatchRecord, void, undefined>;

/**
 * Watches over as many connections as that takes. What changes while there is none is never told, and so each further one
 * begins with an `overflow`. Only what comes between `start` and `end` ends an outage, so that a server which greets and
 * hangs up can't hold the watcher for ever.
 */
export class Watching {
  readonly #calls: Calls;
  readonly #call: Call;
  readonly #path: string;
  readonly #outage: Outage;

  constructor(
    calls: Calls,
    url: string,
    query: { path: string; recursive?: boolean | undefined },
    signal: AbortSignal | undefined,
  ) {
    this.#calls = calls;
    this.#path = query.path;
    this.#call = {
      method: "GET",
      path: url,
      query,
      headers: { accept: NDJSON_TYPE },
      type: NDJSON_TYPE,
      idempotent: true,
      waiting: true,
      silenceMs: STREAM_SILENCE_MS,
      signal,
    };
    this.#outage = calls.outage(this.#call);
  }

  async begin(): Promise<AsyncIterable<FileChange>> {
    return this.#changes(await this.#begun());
  }

  async *#changes(first: Records): AsyncGenerator<FileChange, void, undefined> {
    for (let records = first; ; records = await this.#begun()) {
      if (records !== first) yield { kind: "overflow", path: this.#path, directory: true };
      try {
        for await (const record of records) {
          if (record.type === "end") throw this.#failed(record.error);
          this.#outage.over();
          if (record.type === "change") yield changeOf(record);
        }
        throw this.#cutShort();
      } catch (error) {
        await this.#outage.failed(error);
      }
    }
  }

  /** What follows the `start`, when that has come. */
  async #begun(): Promise<Records> {
    for (;;) {
      try {
        const records = this.#records(await this.#calls.open(this.#call));
        const first = await records.next();
        if (first.done || first.value.type !== "start") throw this.#cutShort();
        return records;
      } catch (error) {
        await this.#outage.failed(error);
      }
    }
  }

  async *#records(reply: WireReply): Records {
    try {
      for await (const record of recordsOf(reply.stream())) yield record as WatchRecord;
    } catch (error) {
      if (!(error instanceof SyntaxError || error instanceof RangeError)) throw error;
      throw new HoldfastError({ ...unexpected(this.#where(), reply.status, ""), cause: error });
    }
  }

  #failed(error: ErrorBody["error"]): HoldfastError {
    return errorOf(this.#where(), ERROR_STATUSES[error.code] ?? 500, JSON.stringify({ error }));
  }

  #cutShort(): HoldfastError {
    return unreachable(this.#where(), "yes", new Error("the stream ended"));
  }

  #where() {
    return this.#calls.where(this.#call);
  }
}

const changeOf = ({ kind, path, directory }: FileChange): FileChange => ({ kind, path, directory });
