import type { WebSocket } from "@fastify/websocket";
import { CallerLeft } from "../http/callers.ts";

/** Close codes. Errors close with 4000 plus their HTTP status. */
export const CLOSE = {
  /** Code for a regular end: all of the exec's output was sent, or the caller detached. */
  over: 1000,
  /** Code for a message of the caller that cannot be parsed. */
  malformed: 1008,
  /** Code for a stream that stopped before its end; the caller reconnects with its last cursor. */
  cut: 1012,
  error: 4000,
} as const;

/**
 * Maximum number of unsent bytes per viewer: while more bytes are queued, the sender waits. The last queued record may
 * exceed the maximum.
 */
export const UNSENT_BYTES = 65_536;
/** Number of consecutive unanswered pings after which a peer is considered gone. */
const SILENT_BEATS = 2;
/** Time for a peer to confirm a close. After it, the connection is terminated. */
const CUT_MS = 1_000;

/**
 * A WebSocket whose peer may be slow or may have vanished.
 *
 * A sender waits while more than `UNSENT_BYTES` are queued for the peer, so a slow viewer needs only that much memory
 * and slows down no other viewer. A machine that lost power never sends a FIN, so a peer that leaves two consecutive
 * pings unanswered is considered gone. While much output is queued, a ping would have to wait behind that output. The
 * peer then has `stallMs` to respond, and any output that it accepts counts as a response. The socket counts pings
 * instead of time, so a server that was itself stopped for a while disconnects no caller.
 */
export class AttachedSocket {
  readonly #socket: WebSocket;
  readonly #onWedged: () => void;
  readonly #stallBeats: number;
  /** Number of pings sent since the peer last responded. */
  #missed = 0;
  /** Bytes sent since the peer last responded. */
  #unread = 0;

  constructor(socket: WebSocket, options: { keepaliveMs: number; stallMs: number; onWedged(): void }) {
    this.#socket = socket;
    this.#onWedged = options.onWedged;
    this.#stallBeats = Math.ceil(options.stallMs / options.keepaliveMs);
    const timer = setInterval(() => this.#beat(), options.keepaliveMs);
    const onSign = () => {
      this.#missed = 0;
      this.#unread = 0;
    };
    socket.on("message", onSign).on("ping", onSign).on("pong", onSign);
    socket.once("close", () => clearInterval(timer));
  }

  get isOpen(): boolean {
    return this.#socket.readyState === this.#socket.OPEN;
  }

  onMessage(listener: (data: Buffer, isBinary: boolean) => void): void {
    // With the default `binaryType`, the WebSocket library delivers each message as one buffer.
    this.#socket.on("message", (data, isBinary) => listener(data as Buffer, isBinary));
  }

  /** Sends one message. Resolves when the next message may be sent; rejects if the peer is gone. */
  async send(message: string | Uint8Array): Promise<void> {
    if (!this.isOpen) throw new CallerLeft();
    this.#unread += message.length;
    const taken = new Promise<void>((resolve) => this.#socket.send(message, () => resolve()));
    if (this.#socket.bufferedAmount <= UNSENT_BYTES) return;
    await taken;
    this.#missed = 0;
  }

  /**
   * Stops reading from the peer while earlier input is processed. During this time, unanswered pings are not counted,
   * because the answers would not be read.
   */
  pause(): void {
    this.#socket.pause();
  }

  resume(): void {
    this.#missed = 0;
    this.#socket.resume();
  }

  /** Closes the socket after all queued messages were sent. */
  close(code: number, reason = ""): void {
    this.#socket.resume();
    this.#socket.close(code, reason);
  }

  /**
   * Closes the socket within `CUT_MS`, even if messages are still queued. Messages that are unsent by then are lost.
   */
  cut(reason: string): void {
    this.close(CLOSE.cut, reason);
    const timer = setTimeout(() => this.#socket.terminate(), CUT_MS);
    this.#socket.once("close", () => clearTimeout(timer));
  }

  #beat(): void {
    if (!this.isOpen) return;
    if (!this.#socket.isPaused) {
      const limit = this.#unread > UNSENT_BYTES ? this.#stallBeats : SILENT_BEATS;
      if (this.#missed >= limit) {
        this.#onWedged();
        this.#socket.terminate();
        return;
      }
      this.#missed += 1;
    }
    if (this.#socket.bufferedAmount <= UNSENT_BYTES) this.#socket.ping();
  }
}
