/** Asks the server for a sign of life. Rejects if the server does not respond within `timeoutMs`. */
type Probe = (timeoutMs: number) => Promise<unknown>;

/** One request that waits for its response. */
export interface Watch {
  /** Records that something arrived from the server. */
  heard(): void;
  /** Pauses the watch while the reader of the response is slow, because no data is expected from the server then. */
  pause(): void;
  resume(): void;
  end(): void;
}

/**
 * Number of checks for silence of the server within `limitMs`: the interval between two checks is `limitMs / LOOKS`.
 */
const LOOKS = 30;
/** The server is probed when it has been silent for this number of check intervals. */
const PROBE_AFTER_LOOKS = 5;
const LONGEST_PROBE_MS = 5_000;
/**
 * Minimum of `limitMs`. A busy server may take this long to answer a probe, so with a shorter limit the client would
 * give up on a server that works.
 */
const LEAST_LIMIT_MS = 5_000;
/**
 * After more than this time without any waiting request, the silence of the server is counted from zero again. The
 * pauses between retries are shorter, so the silence is added up over all retries of a call.
 */
const GAP_MS = 5_000;

/**
 * Distinguishes a server that takes long for one request from a server that does not respond at all, such as a stopped
 * process with open connections. While requests wait, anything received is a sign of life. If nothing is received for a
 * while, the server is probed. If the server has shown no sign of life for `limitMs`, all waiting requests are given
 * up.
 *
 * Each check adds at most two check intervals to the silence. If the client program blocks its own event loop for
 * longer, only these two intervals count as silence of the server.
 */
export class Pulse {
  readonly #limitMs: number;
  readonly #lookMs: number;
  readonly #probe: Probe;
  readonly #waiting = new Map<object, (silentMs: number) => void>();
  #silentMs = 0;
  #lookedAt = 0;
  #timer: NodeJS.Timeout | undefined;
  #isProbing = false;

  constructor(limitMs: number, probe: Probe) {
    this.#limitMs = Math.max(limitMs, LEAST_LIMIT_MS);
    this.#lookMs = this.#limitMs / LOOKS;
    this.#probe = probe;
  }

  /** How long the server has shown no sign of life while requests were waiting. */
  get silentMs(): number {
    return this.#silentMs;
  }

  /** Watches one request; `giveUp` is called when the server has been silent for too long. */
  watch(giveUp: (silentMs: number) => void): Watch {
    const request = {};
    const resume = () => this.#add(request, giveUp);
    const pause = () => void this.#waiting.delete(request);
    resume();
    return { heard: () => this.#heard(), pause, resume, end: pause };
  }

  #add(request: object, giveUp: (silentMs: number) => void): void {
    if (this.#waiting.size === 0 && this.#timer === undefined) {
      const sinceMs = performance.now() - this.#lookedAt;
      this.#silentMs = sinceMs > GAP_MS ? 0 : this.#silentMs + sinceMs;
      this.#lookedAt = performance.now();
      this.#timer = setInterval(() => this.#look(), this.#lookMs).unref();
    }
    this.#waiting.set(request, giveUp);
  }

  #heard(): void {
    this.#silentMs = 0;
  }

  #look(): void {
    const now = performance.now();
    const passedMs = Math.min(now - this.#lookedAt, 2 * this.#lookMs);
    this.#lookedAt = now;
    if (this.#waiting.size === 0) {
      clearInterval(this.#timer);
      this.#timer = undefined;
      return;
    }
    this.#silentMs += passedMs;
    if (this.#silentMs >= this.#limitMs - this.#lookMs) this.#giveUpAll();
    else if (this.#silentMs >= PROBE_AFTER_LOOKS * this.#lookMs) this.#probeOnce();
  }

  #giveUpAll(): void {
    const all = [...this.#waiting.values()];
    this.#waiting.clear();
    // The next request gets the full time limit again.
    this.#silentMs = 0;
    // The last check may come up to one interval before the limit. The whole limit is reported as silence nevertheless,
    // because a call whose reported silence is below the limit would be retried.
    for (const giveUp of all) giveUp(this.#limitMs);
  }

  #probeOnce(): void {
    if (this.#isProbing) return;
    this.#isProbing = true;
    const timeoutMs = Math.min(LONGEST_PROBE_MS, Math.ceil(PROBE_AFTER_LOOKS * this.#lookMs));
    this.#probe(timeoutMs)
      .then(
        () => this.#heard(),
        () => undefined,
      )
      .finally(() => {
        this.#isProbing = false;
      });
  }
}
