/**
 * If a timer fires later than planned by this much, this process was stopped meanwhile. Silence during that time says
 * nothing about the peer.
 */
const STALL_MS = 1_000;

export interface HeartbeatOptions {
  /** Interval between pings. */
  heartbeatMs: number;
  /** Time without received bytes after which the peer is regarded as dead and the link is lost. */
  deadMs: number;
  /** Current time in milliseconds since the epoch, for `lastReceivedAt`. */
  now(): number;
}

interface Effects {
  /** Sends a ping. Resolves when the ping was answered. */
  beat(): Promise<void>;
  dead(why: string): void;
}

/**
 * Decides whether a link is alive. A frozen peer or a disconnected host never sends a FIN, so silence is the only sign.
 * Silence is measured by the monotonic clock, and only while this process could have received something: after this
 * process was stopped, it pings once more before it decides. Silence counts from the start of the link, so a link is
 * also regarded as dead after `deadMs` if no ping could be sent.
 */
export class Heartbeat {
  lastReceivedAt: number;
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
    this.lastReceivedAt = options.now();
    this.#schedule(this.#heardAt);
  }

  /**
   * Starts the pings. Before this call no ping is sent, but even then a peer that sends nothing for `deadMs` is
   * regarded as dead.
   */
  start(): void {
    this.#beating = false;
  }

  received(): void {
    this.#heardAt = performance.now();
    this.lastReceivedAt = this.#options.now();
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
