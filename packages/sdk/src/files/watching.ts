import { errorOf, HoldfastError, unexpected, unreachable } from "../errors.ts";
import { type Call, type Calls, type Outage, STREAM_SILENCE_MS } from "../transport/calls.ts";
import { NDJSON_TYPE, recordsOf } from "../transport/ndjson.ts";
import type { WireReply } from "../transport/transport.ts";
import { ERROR_STATUSES, type ErrorBody, type FileChange } from "../types.generated.ts";

/** Records of a watch. After `start`, every change is reported. `end` gives the reason why the watch ended. */
type WatchRecord =
  | { type: "start"; path: string }
  | ({ type: "change" } & FileChange)
  | { type: "keepalive" }
  | { type: "end"; error: ErrorBody["error"] };

type Records = AsyncGenerator<WatchRecord, void, undefined>;

/**
 * Watches a directory over any number of connections. Changes between two connections are missed, so each further
 * connection starts with an `overflow`. Retries have a time limit, which restarts when an outage has ended. Only a
 * record between `start` and `end` ends an outage: if `start` did, a server that only ever sends `start` and closes the
 * connection would keep the watcher retrying forever.
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
    given: Pick<Call, "signal" | "unknown">,
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
      ...given,
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

  /** Waits for the `start` record and returns an iterator over the records after it. */
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
