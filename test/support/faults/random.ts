/** Random numbers that are the same for the same seed, so that a run of faults can be repeated. */
export class Random {
  readonly seed: number;
  #state: number;

  constructor(seed: number) {
    this.seed = seed >>> 0;
    this.#state = this.seed;
  }

  /** Uses HOLDFAST_SEED, or a new seed; tests print it. */
  static fromEnvironment(): Random {
    return new Random(Number(process.env.HOLDFAST_SEED ?? Math.floor(Math.random() * 2 ** 32)));
  }

  /** Mulberry32. */
  next(): number {
    this.#state = (this.#state + 0x6d2b79f5) >>> 0;
    let mixed = this.#state;
    mixed = Math.imul(mixed ^ (mixed >>> 15), mixed | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  }

  /** Returns an integer in [low, high). */
  between(low: number, high: number): number {
    return low + Math.floor(this.next() * (high - low));
  }

  /** Returns true with this probability. */
  chance(share: number): boolean {
    return this.next() < share;
  }

  pick<Item>(items: readonly Item[]): Item {
    const item = items[this.between(0, items.length)];
    if (item === undefined) throw new RangeError("nothing to pick from");
    return item;
  }
}
