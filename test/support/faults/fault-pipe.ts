import type { Socket } from "node:net";
import type { Random } from "./random.ts";

/** The faults of one direction of a connection. */
export interface Faults {
  /** Delay of every piece, and the maximum random addition. The order is kept. */
  delayMs: number;
  jitterMs: number;
  /** Bytes are read and never delivered, nor is the end: the other side sees nothing at all. */
  halfOpen: boolean;
  /** Maximum rate; 0 means that nothing moves, and the sender's buffers fill. */
  bytesPerSecond: number;
}

export const NO_FAULTS: Readonly<Faults> = {
  delayMs: 0,
  jitterMs: 0,
  halfOpen: false,
  bytesPerSecond: Number.POSITIVE_INFINITY,
};

export interface Tally {
  /** Bytes read from the sender. */
  bytes: number;
  /** Bytes read and never delivered. */
  swallowed: number;
}

/** Maximum bytes in flight; beyond it the pipe stops reading from the sender. */
const QUEUE_BYTES = 262_144;
/** Number of pieces per second in which a throttled direction moves. */
const PIECES_PER_SECOND = 20;

/** Bytes, or how the sender's side ended. */
type Content = Buffer | "end" | "reset";

interface Parcel {
  content: Content;
  dueAt: number;
}

interface Hooks {
  onSilent(): void;
  /** Called if the receiver is gone and the sender is not done. */
  onUndeliverable(): void;
  onOver(): void;
}

/**
 * One direction of one connection. Once a byte or the end was swallowed, nothing is delivered any more, even after the
 * faults end: no network produces a stream with a hole.
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
  /** A half-open fault dropped bytes: nothing more may be delivered to either end. */
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

  /** Whether the sender has ended and nothing is in transit any more. */
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

  /** Called when the faults have changed. */
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

  /** Makes the pipe half-open permanently. */
  fallSilent(): void {
    if (this.silent) return;
    this.silent = true;
    this.silence();
    this.#hooks.onSilent();
  }

  /** Drops everything from here on, without an end or a reset. */
  silence(): void {
    this.#dead = true;
    clearTimeout(this.#timer);
    this.#tally.swallowed += this.#queuedBytes;
    this.#queue = [];
    this.#queuedBytes = 0;
    this.#from.resume();
  }

  /** Stops delivery; the receiver gets an end. */
  cut(): void {
    this.silence();
    this.#to.end();
  }

  /** Stops delivery; the receiver gets a reset. */
  reset(): void {
    this.silence();
    reset(this.#to);
  }

  /** Stops delivery; the sender gets a reset. */
  bounce(): void {
    this.silence();
    reset(this.#from);
  }
}

const sizeOf = (content: Content): number => (typeof content === "string" ? 0 : content.length);

/** Unix sockets have no reset: a close makes the peer's next write fail with EPIPE. */
function reset(socket: Socket): void {
  if (socket.remoteAddress === undefined) socket.destroy();
  else socket.resetAndDestroy();
}
