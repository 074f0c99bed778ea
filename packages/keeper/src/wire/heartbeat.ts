/** A timer that comes this much late shows that this process did not run, not that the other side was silent. */
const STALL_MS = 1_000;

export interface HeartbeatOptions {
  /** A ping is sent so often. */
  heartbeatMs: number;
  /** A link on which nothing came for this long is dead. */
  deadMs: number;
  /** Milliseconds since the epoch, for `lastHeardAt`. */
  now(): number;
}

interface Effects {
  /** Resolves when the beat was answered. */
  beat(): Promise<void>;
  dead(why: string): void;
}

/**
 * Decides whether a link lives. A peer that is frozen, or a host that is cut off, never sends a FIN: silence is all
 * there is to see. Silence counts by the monotonic clock, and only while this process could have heard something: one
 * that was itself stopped asks once more before it judges. The link's end is bounded by `deadMs` even where no ping
 * could be sent at all, because the count starts with the link.
 */
export class Heartbeat {
  lastHeardAt: number;
  readonly #options: HeartbeatOptions;
  readonly #effects: Effects;
  #heardAt = performance.now();
  #beatAt = performance.now();
  #dueAt = 0;
  #beating = true;
  #timer: NodeJS.Timeout | undefined;
  #stopped = false;

  constructor(options: HeartbeatOptions, effects: Effects) {
    this.#options = options;
    this.#effects = effects;
    this.lastHeardAt = options.now();
    this.#schedule(this.#heardAt);
  }

  /** Until then the other side is only expected to answer, not pinged. */
  start(): void {
    this.#beating = false;
  }

  heard(): void {
    this.#heardAt = performance.now();
    this.lastHeardAt = this.#options.now();
  }

  stop(): void {
    this.#stopped = true;
    clearTimeout(this.#timer);
  }

  #schedule(now: number): void {
    const { heartbeatMs, deadMs } = this.#options;
    this.#dueAt = Math.max(now + 1, Math.min(this.#beatAt + heartbeatMs, this.#heardAt + deadMs));
    this.#timer = setTimeout(this.#tick, this.#dueAt - now);
    this.#timer.unref();
  }

  readonly #tick = (): void => {
    const { heartbeatMs, deadMs } = this.#options;
    const now = performance.now();
    if (now - this.#dueAt > STALL_MS) this.#heardAt = Math.max(this.#heardAt, now - deadMs + heartbeatMs);
    if (now - this.#heardAt >= deadMs) {
      this.#effects.dead(`nothing came over the link for ${deadMs / 1000} s`);
      return;
    }
    if (now - this.#beatAt >= heartbeatMs) this.#beat(now);
    if (!this.#stopped) this.#schedule(now);
  };

  #beat(now: number): void {
    this.#beatAt = now;
    if (this.#beating) return;
    this.#beating = true;
    const answered = () => {
      this.#beating = false;
    };
    this.#effects.beat().then(answered, answered);
  }
}
