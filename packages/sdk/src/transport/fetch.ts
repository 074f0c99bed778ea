import { type ConnectionError, silent, unreachable, type Where, whereOf } from "../errors.ts";
import type { Watch } from "./pulse.ts";
import {
  type Body,
  gather,
  isPieces,
  type Transport,
  type WireAnswer,
  type WireReply,
  type WireRequest,
} from "./transport.ts";

type Fetch = typeof globalThis.fetch;

/** Error codes of a connection that was never established; after any other error the request may have arrived. */
const NEVER_CONNECTED = new Set(["ECONNREFUSED", "ENOTFOUND", "EAI_AGAIN", "UND_ERR_CONNECT_TIMEOUT"]);

/** Converts a failure of `fetch` to a ConnectionError. */
export function lost(where: Where, error: unknown): ConnectionError {
  const cause = error instanceof Error && error.cause !== undefined ? error.cause : error;
  const code = String((cause as { code?: unknown }).code);
  return unreachable(where, NEVER_CONNECTED.has(code) ? "no" : "unknown", cause);
}

/** A transport over a `fetch` that the caller provides, for proxies, tracing or tests. */
export class FetchTransport implements Transport {
  readonly #fetch: Fetch;

  constructor(fetch: Fetch) {
    this.#fetch = fetch;
  }

  async ask(request: WireRequest, limit: number): Promise<WireAnswer> {
    const reply = await this.#send(request, false);
    return { status: reply.status, body: await gather(reply, limit) };
  }

  open(request: WireRequest): Promise<WireReply> {
    return this.#send(request, true);
  }

  async #send(request: WireRequest, streaming: boolean): Promise<WireReply> {
    request.signal?.throwIfAborted();
    const guard = new Guard(request, streaming);
    try {
      const response = await this.#fetch(request.base + request.path, {
        method: request.method,
        headers: request.headers,
        signal: guard.signal,
        redirect: "manual",
        ...(request.body === null ? {} : bodyOf(request.body)),
      });
      guard.heard();
      guard.rest();
      return new FetchReply(response, guard);
    } catch (error) {
      throw guard.explain(error);
    }
  }

  close(): void {}
}

function bodyOf(body: Body): RequestInit {
  if (!isPieces(body)) return { body: body as string | Uint8Array<ArrayBuffer> };
  const iterator = toAsync(body.pieces);
  const stream = new ReadableStream<Uint8Array>({
    async pull(controller) {
      const { done, value } = await iterator.next();
      if (done) controller.close();
      else controller.enqueue(value);
    },
    async cancel() {
      await iterator.return();
    },
  });
  return { body: stream, duplex: "half" } as RequestInit;
}

async function* toAsync(pieces: AsyncIterable<Uint8Array> | Iterable<Uint8Array>) {
  yield* pieces;
}

/** Combines the timeout and the caller's signal into one signal, and gives the reason of the one that fired first. */
class Guard {
  readonly #request: WireRequest;
  readonly #streaming: boolean;
  readonly #controller = new AbortController();
  readonly #clock: NodeJS.Timeout;
  readonly #watch: Watch | undefined;
  #resting = false;
  readonly #abort = () => this.#controller.abort(this.#request.signal?.reason);

  constructor(request: WireRequest, streaming: boolean) {
    this.#request = request;
    this.#streaming = streaming;
    this.#clock = setTimeout(() => {
      if (!this.#resting) this.#controller.abort(silent(whereOf(request), request.timeoutMs, "unknown"));
    }, request.timeoutMs);
    request.signal?.addEventListener("abort", this.#abort, { once: true });
    this.#watch = request.pulse?.watch((silentMs) =>
      this.#controller.abort(silent(whereOf(request), silentMs, "unknown", silentMs)),
    );
  }

  /** Records that something arrived from the server. */
  heard(): void {
    this.#watch?.heard();
  }

  get signal(): AbortSignal {
    return this.#controller.signal;
  }

  /**
   * Restarts the timeout. Must be called when a piece was sent, and when the reader of a stream asks for the next
   * piece.
   */
  progress(): void {
    if (!this.#streaming) return;
    if (this.#resting) this.#watch?.resume();
    this.#resting = false;
    this.#clock.refresh();
  }

  /** Suspends the timeout of a stream until the reader asks for the next piece, because the reader may be slow. */
  rest(): void {
    this.#resting = this.#streaming;
    if (this.#resting) this.#watch?.pause();
  }

  done(): void {
    clearTimeout(this.#clock);
    this.#watch?.end();
    this.#request.signal?.removeEventListener("abort", this.#abort);
  }

  explain(error: unknown): unknown {
    this.done();
    if (this.signal.aborted) return this.signal.reason;
    return lost(whereOf(this.#request), error);
  }
}

class FetchReply implements WireReply {
  readonly status: number;
  readonly #response: Response;
  readonly #guard: Guard;

  constructor(response: Response, guard: Guard) {
    this.status = response.status;
    this.#response = response;
    this.#guard = guard;
  }

  header(name: string): string | null {
    return this.#response.headers.get(name);
  }

  async *stream(): AsyncGenerator<Uint8Array, void, undefined> {
    try {
      this.#guard.progress();
      for await (const piece of this.#response.body ?? []) {
        this.#guard.heard();
        this.#guard.rest();
        yield piece;
        this.#guard.progress();
      }
    } catch (error) {
      throw this.#guard.explain(error);
    } finally {
      this.#guard.done();
    }
  }
}
