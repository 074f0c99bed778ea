import { randomUUID } from "node:crypto";
import type { CreateOptions } from "../api.ts";
import { errorOf, HoldfastError, unexpected, unreachable } from "../errors.ts";
import { type Call, type Calls, STREAM_SILENCE_MS } from "../transport/calls.ts";
import { NDJSON_TYPE, recordsOf } from "../transport/ndjson.ts";
import { gather, type WireReply } from "../transport/transport.ts";
import { type CreateSandbox, ERROR_STATUSES, type ErrorBody, type Sandbox } from "../types.generated.ts";

/** Records of the response to a streamed create. The last one is the sandbox, or the error. */
type CreateRecord =
  | { type: "progress"; step: string; at: string }
  | { type: "keepalive" }
  | { type: "sandbox"; sandbox: Sandbox }
  | { type: "error"; error: ErrorBody["error"] };

/** The server's keepalive interval while it creates a sandbox. */
const KEEPALIVE_MS = 5_000;
const ANSWER_LIMIT_BYTES = 1_048_576;

/**
 * Creates a sandbox over any number of connections, however long it is queued. All requests carry the same idempotency
 * key: the first to arrive starts the creation, and the others follow the same creation. The response is requested as a
 * stream, so that a broken connection can be distinguished from a long wait. A response without streaming is also
 * accepted.
 */
export class Creation {
  readonly #calls: Calls;
  readonly #call: Call;
  readonly #onProgress: CreateOptions["onProgress"];

  constructor(calls: Calls, wanted: CreateSandbox, { signal, onProgress }: CreateOptions) {
    this.#calls = calls;
    this.#onProgress = onProgress;
    this.#call = {
      method: "POST",
      path: "/v1/sandboxes",
      json: wanted,
      headers: { accept: NDJSON_TYPE, "idempotency-key": randomUUID() },
      idempotent: true,
      waitMs: KEEPALIVE_MS,
      silenceMs: STREAM_SILENCE_MS,
      signal,
    };
  }

  async sandbox(): Promise<Sandbox> {
    const outage = this.#calls.outage(this.#call);
    // Only a keepalive ends an outage. The server sends a keepalive after an interval, so it shows that the server
    // stayed up. Progress steps do not show that, because all of them may arrive at once.
    const onKeepalive = () => outage.over();
    for (;;) {
      try {
        const reply = await this.#calls.open(this.#call);
        const isStream = reply.header("content-type")?.startsWith(NDJSON_TYPE) === true;
        return isStream ? await this.#follow(reply, onKeepalive) : await this.#whole(reply);
      } catch (error) {
        await outage.failed(error);
      }
    }
  }

  /**
   * Reads the records of a streamed create and returns the sandbox. Continues to read after the sandbox's record up to
   * the end of the stream, so that the connection can be reused.
   */
  async #follow(reply: WireReply, onKeepalive: () => void): Promise<Sandbox> {
    let made: Sandbox | null = null;
    try {
      for await (const record of this.#records(reply)) {
        if (made !== null) break;
        if (record.type === "keepalive") onKeepalive();
        else if (record.type === "progress") this.#onProgress?.({ step: record.step, at: record.at });
        else if (record.type === "sandbox") made = record.sandbox;
        else if (record.type === "error") throw this.#failed(record.error);
      }
    } catch (error) {
      if (made === null) throw error;
    }
    if (made === null) throw this.#cutShort();
    return made;
  }

  async *#records(reply: WireReply): AsyncGenerator<CreateRecord, void, undefined> {
    try {
      for await (const record of recordsOf(reply.stream())) yield record as CreateRecord;
    } catch (error) {
      throw error instanceof SyntaxError || error instanceof RangeError ? this.#foreign(reply, error) : error;
    }
  }

  async #whole(reply: WireReply): Promise<Sandbox> {
    const body = Buffer.from(await gather(reply, ANSWER_LIMIT_BYTES)).toString();
    try {
      return JSON.parse(body) as Sandbox;
    } catch (cause) {
      throw this.#foreign(reply, cause, body);
    }
  }

  #failed(error: ErrorBody["error"]): HoldfastError {
    return errorOf(this.#where(), ERROR_STATUSES[error.code] ?? 500, JSON.stringify({ error }));
  }

  #foreign({ status }: WireReply, cause: unknown, body = ""): HoldfastError {
    return new HoldfastError({ ...unexpected(this.#where(), status, body), cause });
  }

  #cutShort(): HoldfastError {
    return unreachable(
      this.#where(),
      "unknown",
      new Error("the stream ended before the sandbox was created"),
    );
  }

  #where() {
    return this.#calls.where(this.#call);
  }
}
