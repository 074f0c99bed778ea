import type { Socket } from "node:net";
import type { Random } from "./random.ts";

/** What happens to bytes on their way in one direction. */
export interface Faults {
  /** How long every piece is on its way, and up to how much longer. Order is kept. */
  delayMs: number;
  jitterMs: number;
  /** Read and never delivered, nor is the end: the other side sees nothing at all. */
  halfOpen: boolean;
  /** 0: nothing moves, and the sender's buffers fill. */
  bytesPerSecond: number;
}

export const NO_FAULTS: Readonly<Faults> = {
  delayMs: 0,
  jitterMs: 0,
  halfOpen: false,
  bytesPerSecond: Number.POSITIVE_INFINITY,
};

export interface Tally {
  /** Read from the sender. */
  bytes: number;
  /** Read and never delivered. */
  swallowed: number;
}

/** What is on its way at most, before the sender is no longer read from. */
const QUEUE_BYTES = 262_144;
/** A throttled direction moves in so many pieces a second. */
const PIECES_PER_SECOND = 20;

/** Bytes, or how the sender's side was over. */
type Content = Buffer | "end" | "reset";

interface Parcel {
  content: Content;
  dueAt: number;
}

interface Hooks {
  onSilent(): void;
  /** The receiver is gone, and the sender is not done. */
  onUndeliverable(): void;
  onOver(): void;
}

/**
 * One direction of one connection. Once a byte or the end was swallowed nothing is delivered any more, faults or no faults:
 * a stream with a hole in it is something that no network does.
 */
export class FaultPipe {
  readonly #from: Socket;
  readonly #to: Socket;
  readonly #faults: () => Readonly<Faults>;
  readonly #tally: Tally;
  readonly #random: Random;
  readonly #hooks: Hooks;
  #queue: Parcel[] = [];
  #queuedBytes = 0;
  #lastDueAt = 0;
  #freeAt = 0;
  #timer: NodeJS.Timeout | undefined;
  #blocked = false;
  #ended = false;
  #dead = false;
  /** Something was swallowed by a half-open fault: nobody at either end can be told anything of it any more. */
  silent = false;

  constructor(
    { from, to }: { from: Socket; to: Socket },
    { faults, tally, random }: { faults: () => Readonly<Faults>; tally: Tally; random: Random },
    hooks: Hooks,
  ) {
    this.#from = from;
    this.#to = to;
    this.#faults = faults;
    this.#tally = tally;
    this.#random = random;
    this.#hooks = hooks;
    from.on("data", (data) => this.#take(data));
    from.once("end", () => this.#take("end"));
    from.once("close", (broken) => this.#take(broken ? "reset" : "end"));
    to.on("drain", () => {
      this.#blocked = false;
      this.#pump();
    });
    to.once("close", () => {
      if (!this.over) hooks.onUndeliverable();
    });
  }

  /** The sender has ended, and nothing is on its way any more. */
  get over(): boolean {
    return this.#ended && this.#queue.length === 0;
  }

  #take(content: Content): void {
    if (this.#ended) return;
    this.#ended = typeof content === "string";
    this.#tally.bytes += sizeOf(content);
    const { delayMs, jitterMs, halfOpen } = this.#faults();
    if (halfOpen) this.fallSilent();
    if (this.#dead) {
      this.#tally.swallowed += sizeOf(content);
      if (this.#ended) this.#hooks.onOver();
      return;
    }
    const dueAt = performance.now() + delayMs + jitterMs * this.#random.next();
    this.#lastDueAt = Math.max(this.#lastDueAt, dueAt);
    this.#queue.push({ content, dueAt: this.#lastDueAt });
    this.#queuedBytes += sizeOf(content);
    if (this.#queuedBytes > QUEUE_BYTES) this.#from.pause();
    this.#pump();
  }

  /** The faults have changed. */
  refresh(): void {
    if (this.#faults().halfOpen && this.#queue.length > 0) this.fallSilent();
    this.#freeAt = 0;
    this.#pump();
  }

  #pump(): void {
    clearTimeout(this.#timer);
    while (!this.#blocked) {
      const [parcel] = this.#queue;
      const { bytesPerSecond } = this.#faults();
      if (parcel === undefined || bytesPerSecond === 0) return;
      const waitMs = Math.max(parcel.dueAt, this.#freeAt) - performance.now();
      if (waitMs > 0) {
        this.#timer = setTimeout(() => this.#pump(), waitMs);
        return;
      }
      if (typeof parcel.content !== "string") this.#deliver(parcel, parcel.content, bytesPerSecond);
      else this.#finish(parcel.content);
    }
  }

  #deliver(parcel: Parcel, data: Buffer, bytesPerSecond: number): void {
    const piece = data.subarray(0, Math.max(1, bytesPerSecond / PIECES_PER_SECOND));
    if (piece.length === data.length) this.#queue.shift();
    else parcel.content = data.subarray(piece.length);
    this.#queuedBytes -= piece.length;
    this.#freeAt = performance.now() + (piece.length / bytesPerSecond) * 1_000;
    if (this.#queuedBytes <= QUEUE_BYTES) this.#from.resume();
    if (this.#to.writable && !this.#to.write(piece)) this.#blocked = true;
  }

  #finish(how: "end" | "reset"): void {
    this.#queue.shift();
    if (how === "end") this.#to.end();
    else reset(this.#to);
    this.#hooks.onOver();
  }

  /** As by a half-open fault, for good. */
  fallSilent(): void {
    if (this.silent) return;
    this.silent = true;
    this.silence();
    this.#hooks.onSilent();
  }

  /** Nothing more is delivered, and nobody is told. */
  silence(): void {
    this.#dead = true;
    clearTimeout(this.#timer);
    this.#tally.swallowed += this.#queuedBytes;
    this.#queue = [];
    this.#queuedBytes = 0;
    this.#from.resume();
  }

  /** Nothing more is delivered; the receiver is sent an end. */
  cut(): void {
    this.silence();
    this.#to.end();
  }

  /** Nothing more is delivered; the receiver is sent a reset. */
  reset(): void {
    this.silence();
    reset(this.#to);
  }

  /** Nothing more is delivered; the sender is sent a reset. */
  bounce(): void {
    this.silence();
    reset(this.#from);
  }
}

const sizeOf = (content: Content): number => (typeof content === "string" ? 0 : content.length);

/** Of a unix socket a plain close is all there is: who writes to it next is told EPIPE. */
function reset(socket: Socket): void {
  if (socket.remoteAddress === undefined) socket.destroy();
  else socket.resetAndDestroy();
}
