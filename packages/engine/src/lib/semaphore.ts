/** Lets so many through at a time; the rest wait in the order they came. */
export class Turnstile {
  readonly #width: number;
  readonly #waiting: (() => void)[] = [];
  #inside = 0;

  constructor(width: number) {
    this.#width = width;
  }

  async pass<Result>(signal: AbortSignal, work: () => Promise<Result>): Promise<Result> {
    if (this.#inside < this.#width) this.#inside += 1;
    else await this.#wait(signal);
    try {
      signal.throwIfAborted();
      return await work();
    } finally {
      this.#leave();
    }
  }

  async #wait(signal: AbortSignal): Promise<void> {
    const { promise, resolve, reject } = Promise.withResolvers<void>();
    const giveUp = () => {
      const place = this.#waiting.indexOf(resolve);
      // Its turn may have come at this very moment; then it is inside, and leaves by the way out.
      if (place < 0) return;
      this.#waiting.splice(place, 1);
      reject(signal.reason);
    };
    signal.throwIfAborted();
    signal.addEventListener("abort", giveUp, { once: true });
    this.#waiting.push(resolve);
    await promise.finally(() => signal.removeEventListener("abort", giveUp));
  }

  /** The place goes to the next; only where nobody waits it is given up. */
  #leave(): void {
    const next = this.#waiting.shift();
    if (next) next();
    else this.#inside -= 1;
  }
}
