import { HoldfastError } from "@holdfast/contract";

interface SemaphoreOptions {
  /** Maximum number of callers that wait at a time. */
  limit: number;
  /** The error for callers beyond the limit. */
  onFull?: () => HoldfastError;
}

/**
 * Allows up to `width` callers at a time. The others wait in order of arrival; beyond `limit` waiting callers, further
 * ones are refused.
 */
export class Semaphore {
  readonly #width: number;
  readonly #limit: number;
  readonly #onFull: () => HoldfastError;
  readonly #waiting: (() => void)[] = [];
  #running = 0;

  constructor(width: number, { limit, onFull = () => semaphoreFull(limit) }: SemaphoreOptions) {
    this.#width = width;
    this.#limit = limit;
    this.#onFull = onFull;
  }

  async run<Result>(signal: AbortSignal, work: () => Promise<Result>): Promise<Result> {
    const leave = await this.enter(signal);
    try {
      signal.throwIfAborted();
      return await work();
    } finally {
      leave();
    }
  }

  /** Takes a place. The returned function gives the place back, and does nothing when called again. */
  async enter(signal: AbortSignal): Promise<() => void> {
    const place = this.tryEnter();
    if (place !== null) return place;
    await this.#wait(signal);
    return this.#place();
  }

  /** Takes a place without waiting. Returns null if no place is free. */
  tryEnter(): (() => void) | null {
    if (this.#running >= this.#width) return null;
    this.#running += 1;
    return this.#place();
  }

  #place(): () => void {
    let isIn = true;
    return () => {
      if (!isIn) return;
      isIn = false;
      this.#leave();
    };
  }

  async #wait(signal: AbortSignal): Promise<void> {
    signal.throwIfAborted();
    if (this.#waiting.length >= this.#limit) throw this.#onFull();
    const { promise, resolve, reject } = Promise.withResolvers<void>();
    const giveUp = () => {
      const place = this.#waiting.indexOf(resolve);
      // The caller was given a place before the abort was handled. It keeps the place and releases it in `run`.
      if (place < 0) return;
      this.#waiting.splice(place, 1);
      reject(signal.reason);
    };
    signal.addEventListener("abort", giveUp, { once: true });
    this.#waiting.push(resolve);
    await promise.finally(() => signal.removeEventListener("abort", giveUp));
  }

  /** Gives the place to the next waiting caller, or frees the place if no caller waits. */
  #leave(): void {
    const next = this.#waiting.shift();
    if (next) next();
    else this.#running -= 1;
  }
}

const semaphoreFull = (limit: number): HoldfastError =>
  new HoldfastError("capacity", { message: `${limit} callers are waiting for the same work already.` });
