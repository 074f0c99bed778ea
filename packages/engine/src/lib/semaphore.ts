import { HoldfastError } from "@holdfast/contract";
import { FairQueue } from "./fair-queue.ts";

interface SemaphoreOptions {
  /** Maximum number of callers that wait at a time. */
  limit: number;
  /** Returns the error for a caller that is refused because `limit` callers already wait. */
  onFull?: () => HoldfastError;
}

/**
 * Allows up to `width` callers at a time. The others wait; beyond `limit` waiting callers, further ones are refused.
 * Owners are served in turn, and the callers of one owner in order of arrival. All callers that name no owner count as
 * one owner.
 */
export class Semaphore {
  readonly #width: number;
  readonly #limit: number;
  readonly #onFull: () => HoldfastError;
  readonly #queue = new FairQueue<() => void>();
  #running = 0;

  constructor(width: number, { limit, onFull = () => semaphoreFull(limit) }: SemaphoreOptions) {
    this.#width = width;
    this.#limit = limit;
    this.#onFull = onFull;
  }

  /** The number of callers that wait. */
  get waiting(): number {
    return this.#queue.length;
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
  async enter(signal: AbortSignal, owner: string | null = null): Promise<() => void> {
    const place = this.tryEnter();
    if (place !== null) return place;
    await this.#wait(signal, owner);
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

  async #wait(signal: AbortSignal, owner: string | null): Promise<void> {
    signal.throwIfAborted();
    if (this.#queue.length >= this.#limit) throw this.#onFull();
    const { promise, resolve, reject } = Promise.withResolvers<void>();
    const giveUp = () => {
      // A caller that is no longer in the queue was given its permit before the abort. It keeps the permit and
      // releases it at the end of its work.
      if (this.#queue.leave(resolve)) reject(signal.reason);
    };
    signal.addEventListener("abort", giveUp, { once: true });
    this.#queue.join(owner, resolve);
    await promise.finally(() => signal.removeEventListener("abort", giveUp));
  }

  /** Gives the permit to the next waiting caller, or frees it if no caller waits. */
  #leave(): void {
    const next = this.#queue.next();
    if (next) next();
    else this.#running -= 1;
  }
}

const semaphoreFull = (limit: number): HoldfastError =>
  new HoldfastError("capacity", { message: `${limit} callers are waiting for the same work already.` });
