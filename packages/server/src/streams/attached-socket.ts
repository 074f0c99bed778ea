import type { WebSocket } from "@fastify/websocket";
import { CallerLeft } from "./callers.ts";

/** Why a socket is closed. An error's own code is 4000 and its HTTP status. */
export const CLOSE = {
  /** The exec has ended and all of its output was sent, or the caller detached. */
  over: 1000,
  /** What the caller sent can't be understood. */
  malformed: 1008,
  /** The stream stopped before its end; the caller comes back with its last cursor. */
  cut: 1012,
  error: 4000,
} as const;

/** What may lie unsent for a viewer before it is waited for; one record comes on top. */
export const UNSENT_BYTES = 65_536;
/** Pings in a row that a peer may leave unanswered. */
const SILENT_BEATS = 2;
/** A peer that was cut has this long to agree. */
const CUT_MS = 1_000;

/**
 * A WebSocket whose other end may be slow, or gone without a word.
 *
 * A sender is held while more than `UNSENT_BYTES` wait for the peer, so a slow viewer costs that much and slows only itself.
 * A peer that doesn't answer two pings in a row is gone: no FIN ever comes from a machine that lost its power. Much output
 * on its way makes an exception, because the ping stands in line behind it: then the peer has `stallMs`, and all that it
 * takes counts as an answer. Beats are counted, not time, so a server that was stopped itself for a while cuts nobody off.
 */
export class AttachedSocket {
  readonly #socket: WebSocket;
  readonly #onWedged: () => void;
  readonly #stallBeats: number;
  /** Beats since the peer was last heard. */
  #missed = 0;
  /** Sent since then. */
  #unread = 0;

  constructor(socket: WebSocket, options: { keepaliveMs: number; stallMs: number; onWedged(): void }) {
    this.#socket = socket;
    this.#onWedged = options.onWedged;
    this.#stallBeats = Math.ceil(options.stallMs / options.keepaliveMs);
    const timer = setInterval(() => this.#beat(), options.keepaliveMs);
    const heard = () => {
      this.#missed = 0;
      this.#unread = 0;
    };
    socket.on("message", heard).on("ping", heard).on("pong", heard);
    socket.once("close", () => clearInterval(timer));
  }

  get isOpen(): boolean {
    return this.#socket.readyState === this.#socket.OPEN;
  }

  onMessage(listener: (data: Buffer, isBinary: boolean) => void): void {
    // With the socket's default `binaryType` a message is always one buffer.
    this.#socket.on("message", (data, isBinary) => listener(data as Buffer, isBinary));
  }

  /** One message. Resolves when the next may be sent; rejects where nobody is there. */
  async send(message: string | Uint8Array): Promise<void> {
    if (!this.isOpen) throw new CallerLeft();
    this.#unread += message.length;
    const taken = new Promise<void>((resolve) => this.#socket.send(message, () => resolve()));
    if (this.#socket.bufferedAmount <= UNSENT_BYTES) return;
    await taken;
    this.#missed = 0;
  }

  /** Stops listening, for as long as what came can't be dealt with. Whoever isn't listened to need not answer. */
  pause(): void {
    this.#socket.pause();
  }

  resume(): void {
    this.#missed = 0;
    this.#socket.resume();
  }

  /** Behind all that was sent. */
  close(code: number, reason = ""): void {
    this.#socket.resume();
    this.#socket.close(code, reason);
  }

  /** Closes within a moment, whatever is still to be sent. */
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
