import type { Socket } from "node:net";
import { KeeperRefusal, LinkLost } from "@holdfast/engine";
import { Heartbeat, type HeartbeatOptions } from "./heartbeat.ts";
import { ping } from "./link-codec.ts";
import { ANSWER, REFUSAL } from "./protocol.ts";
import { readRefusal } from "./refusal.ts";
import type { Lane, RequestSpec } from "./request.ts";
import { FrameSplitter, type Reader, WireError, Writer } from "./wire.ts";

/**
 * For each lane, the number of requests in flight at which it sends no further request. The numbers count requests of
 * all lanes. The peer stops reading at 256.
 */
const IN_FLIGHT_LIMIT: Record<Lane, number> = { urgent: 256, normal: 240, patient: 192 };
/** Maximum number of requests that wait in one lane. */
const WAITING_LIMIT = 1_024;
/**
 * While at least this many bytes are gathered for the socket, further requests wait. They also wait while the socket is
 * full.
 */
const GATHERED_LIMIT = 1_048_576;
const LAST_ID = 0xffff_ffff;

interface ChannelOptions extends HeartbeatOptions {
  /** Called for frames with the id 0, which are events. */
  onEvent(type: number, payload: Reader): void;
}

/** A request as the channel sees it, whatever the type of its answer. */
interface Pending {
  readonly type: number;
  readonly lane: Lane;
  /** Number of the socket write in which the request is sent; 0 while the request waits. */
  batch: number;
  /** Whether the caller has aborted the request. It still counts as in flight until its answer arrives. */
  forgotten: boolean;
  encode(out: Writer): void;
  accept(payload: Reader): void;
  fail(error: unknown): void;
}

class Request<Answer> implements Pending {
  readonly type: number;
  readonly lane: Lane;
  batch = 0;
  forgotten = false;
  readonly #spec: RequestSpec<Answer>;
  readonly #signal: AbortSignal | null;
  readonly #resolve: (answer: Answer) => void;
  readonly #reject: (error: unknown) => void;
  readonly #late: ((answer: Answer) => void) | null;
  readonly #forget: (request: Pending) => void;

  constructor(
    spec: RequestSpec<Answer>,
    signal: AbortSignal | null,
    settle: { resolve: (answer: Answer) => void; reject: (error: unknown) => void },
    late: ((answer: Answer) => void) | null,
    forget: (request: Pending) => void,
  ) {
    this.type = spec.type;
    this.lane = spec.lane;
    this.#spec = spec;
    this.#signal = signal;
    this.#resolve = settle.resolve;
    this.#reject = settle.reject;
    this.#late = late;
    this.#forget = forget;
    signal?.addEventListener("abort", this);
  }

  encode(out: Writer): void {
    this.#spec.encode(out);
  }

  /**
   * Called when the caller's signal aborts. The request itself is the signal's listener, which saves a closure per
   * request.
   */
  handleEvent(): void {
    this.forgotten = true;
    this.fail(this.#signal?.reason);
    this.#forget(this);
  }

  accept(payload: Reader): void {
    if (this.forgotten && this.#late === null) return;
    const answer = this.#spec.decode(payload);
    payload.end();
    if (this.forgotten) {
      this.#late?.(answer);
      return;
    }
    this.#signal?.removeEventListener("abort", this);
    this.#resolve(answer);
  }

  fail(error: unknown): void {
    this.#signal?.removeEventListener("abort", this);
    this.#reject(error);
  }
}

/**
 * Sends many requests over one socket. Each request is settled exactly once: with the peer's answer or refusal, with
 * the reason of the caller's signal, or with `LinkLost` when the socket ends, is silent or breaks the protocol. The
 * field `dispatched` of `LinkLost` is "no" only if no byte of the request was given to the socket.
 *
 * Requests made in one turn of the event loop are sent in one write. While the socket is full or too many requests are
 * in flight, a limited number of requests waits in order; further ones are refused with `limit`.
 */
export class Channel {
  /** Resolves once, with a sentence that says why the channel closed. */
  readonly closed: Promise<string>;
  readonly #socket: Socket;
  readonly #onEvent: ChannelOptions["onEvent"];
  readonly #heartbeat: Heartbeat;
  readonly #out = new Writer();
  readonly #splitter = new FrameSplitter((id, type, payload) => this.#take(id, type, payload));
  readonly #inFlight = new Map<number, Pending>();
  readonly #waiting: Record<Lane, Set<Pending>> = {
    urgent: new Set(),
    normal: new Set(),
    patient: new Set(),
  };
  readonly #resolveClosed: (why: string) => void;
  #lastId = 0;
  #batch = 1;
  #flushing = false;
  #full = false;
  #over: string | null = null;

  constructor(socket: Socket, options: ChannelOptions) {
    this.#socket = socket;
    this.#onEvent = options.onEvent;
    const closed = Promise.withResolvers<string>();
    this.closed = closed.promise;
    this.#resolveClosed = closed.resolve;
    this.#heartbeat = new Heartbeat(options, {
      beat: () => this.request(ping(0), null),
      dead: (why) => this.close(why),
    });
    socket.on("drain", () => {
      this.#full = false;
      this.#sendWaiting();
    });
    socket.on("error", (error) => this.close(`the link failed: ${codeOf(error)}`));
    socket.on("close", () => this.close("the other side closed the link"));
    socket.on("end", () => this.close("the other side closed the link"));
  }

  get lastReceivedAt(): number {
    return this.#heartbeat.lastReceivedAt;
  }

  /** Starts to ping the peer. Called once the peer has answered the hello. */
  greeted(): void {
    this.#heartbeat.start();
  }

  /**
   * Sends a request. Without a signal, the request is settled at the latest when the link ends. `late` receives an
   * answer that arrives after the signal was aborted, so that a handle opened by the request can be closed.
   */
  request<Answer>(
    spec: RequestSpec<Answer>,
    signal: AbortSignal | null,
    late: ((answer: Answer) => void) | null = null,
  ): Promise<Answer> {
    return new Promise((resolve, reject) => {
      if (this.#over !== null) return reject(new LinkLost(this.#over, "no"));
      if (signal?.aborted) return reject(signal.reason);
      const waiting = this.#waiting[spec.lane];
      if (waiting.size >= WAITING_LIMIT) {
        return reject(new KeeperRefusal("limit", "too many requests wait for this link"));
      }
      const request = new Request(spec, signal, { resolve, reject }, late, this.#forget);
      if (waiting.size === 0 && this.#maySend(spec.lane)) this.#send(request);
      else waiting.add(request);
    });
  }

  /** Sends a request without waiting for its answer. A refusal is ignored. */
  post(spec: RequestSpec<unknown>): void {
    this.request(spec, null).catch(() => {});
  }

  /** Processes received bytes. If `shared` is true, the chunk's memory is reused afterwards. */
  feed(chunk: Buffer, shared: boolean): void {
    if (this.#over !== null) return;
    this.#heartbeat.received();
    try {
      this.#splitter.feed(chunk, shared);
    } catch (error) {
      const what = error instanceof Error ? error.message : String(error);
      this.close(error instanceof WireError ? `the other side broke the protocol: ${what}` : what);
    }
    this.#sendWaiting();
  }

  close(why: string): void {
    if (this.#over !== null) return;
    this.#over = why;
    this.#heartbeat.stop();
    this.#socket.destroy();
    for (const request of this.#inFlight.values()) this.#lose(request, why);
    this.#inFlight.clear();
    for (const lane of Object.values(this.#waiting)) {
      for (const request of lane) this.#lose(request, why);
      lane.clear();
    }
    this.#resolveClosed(why);
  }

  #lose(request: Pending, why: string): void {
    const written = request.batch !== 0 && request.batch !== this.#batch;
    request.fail(new LinkLost(why, written ? "unknown" : "no"));
  }

  readonly #forget = (request: Pending): void => {
    this.#waiting[request.lane].delete(request);
  };

  #maySend(lane: Lane): boolean {
    return !this.#full && this.#inFlight.size < IN_FLIGHT_LIMIT[lane] && this.#out.size < GATHERED_LIMIT;
  }

  #sendWaiting(): void {
    for (const lane of ["urgent", "normal", "patient"] as const) {
      const waiting = this.#waiting[lane];
      for (const request of waiting) {
        if (!this.#maySend(lane)) break;
        waiting.delete(request);
        this.#send(request);
      }
    }
  }

  #send(request: Pending): void {
    const id = this.#nextId();
    try {
      this.#out.frame(id, request.type, (out) => request.encode(out));
    } catch (error) {
      request.fail(error);
      return;
    }
    request.batch = this.#batch;
    this.#inFlight.set(id, request);
    if (this.#flushing) return;
    this.#flushing = true;
    queueMicrotask(this.#flush);
  }

  readonly #flush = (): void => {
    this.#flushing = false;
    if (this.#over !== null) return;
    this.#batch++;
    const parts = this.#out.take();
    if (parts.length > 1) this.#socket.cork();
    for (const part of parts) this.#socket.write(part);
    if (parts.length > 1) this.#socket.uncork();
    this.#full = this.#socket.writableNeedDrain;
    this.#sendWaiting();
  };

  #nextId(): number {
    do this.#lastId = this.#lastId === LAST_ID ? 1 : this.#lastId + 1;
    while (this.#inFlight.has(this.#lastId));
    return this.#lastId;
  }

  #take(id: number, type: number, payload: Reader): void {
    if (this.#over !== null) return;
    if (id === 0) {
      if (type === REFUSAL) this.close(`the other side ended the link: ${readRefusal(payload).message}`);
      else this.#onEvent(type, payload);
      return;
    }
    const request = this.#inFlight.get(id);
    if (request === undefined) throw new WireError("an answer without a request");
    if (type === REFUSAL) {
      const refusal = readRefusal(payload);
      this.#inFlight.delete(id);
      request.fail(refusal);
      return;
    }
    if (type !== (request.type | ANSWER))
      throw new WireError("an answer that does not match the request type");
    request.accept(payload);
    this.#inFlight.delete(id);
  }
}

const codeOf = (error: Error): string =>
  "code" in error && typeof error.code === "string" ? error.code : error.name;
