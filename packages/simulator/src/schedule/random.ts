/**
 * Seeded random numbers: xoshiro128**, seeded by splitmix32. Both are short, and give the same numbers on every machine
 * because they only use 32-bit integers.
 */
export class Random {
  readonly #state = new Uint32Array(4);

  /**
   * Creates a generator from the parts of a seed. The same parts give the same sequence of numbers; different parts
   * give different sequences.
   */
  constructor(...parts: readonly number[]) {
    let seed = 0x9e37_79b9;
    for (const part of parts) {
      // The lower and the upper 32 bits of a seed are mixed in separately, because a seed may have more than 32 bits.
      seed = splitmix(seed ^ (part >>> 0));
      seed = splitmix(seed ^ Math.floor(part / 0x1_0000_0000));
    }
    for (let i = 0; i < 4; i += 1) {
      seed = (seed + 0x9e37_79b9) >>> 0;
      this.#state[i] = splitmix(seed);
    }
  }

  #next(): number {
    const s = this.#state;
    const [a = 0, b = 0, c = 0, d = 0] = s;
    const result = Math.imul(rotate(Math.imul(b, 5), 7), 9) >>> 0;
    const e = c ^ a;
    const f = d ^ b;
    s[1] = b ^ e;
    s[0] = a ^ f;
    s[2] = e ^ (b << 9);
    s[3] = rotate(f, 11);
    return result;
  }

  /** Uniform in [0, 1). */
  unit(): number {
    return this.#next() / 0x1_0000_0000;
  }

  /** An integer in [0, count). */
  below(count: number): number {
    return Math.floor(this.unit() * count);
  }

  /** An integer in [from, to]. */
  between(from: number, to: number): number {
    return from + this.below(to - from + 1);
  }

  chance(probability: number): boolean {
    return this.unit() < probability;
  }

  pick<Item>(items: readonly [Item, ...Item[]]): Item;
  pick<Item>(items: readonly Item[]): Item | undefined;
  pick<Item>(items: readonly Item[]): Item | undefined {
    return items[this.below(items.length)];
  }

  /** Returns one of the items, with a probability proportional to its weight. */
  weighted<Item extends { readonly weight: number }>(items: readonly Item[]): Item {
    let left = this.unit() * items.reduce((sum, { weight }) => sum + weight, 0);
    for (const item of items) {
      left -= item.weight;
      if (left < 0) return item;
    }
    throw new Error("there is nothing to choose from");
  }
}

const rotate = (value: number, by: number): number => (value << by) | (value >>> (32 - by));

function splitmix(seed: number): number {
  let z = (seed + 0x9e37_79b9) | 0;
  z = Math.imul(z ^ (z >>> 16), 0x21f0_aaad);
  z = Math.imul(z ^ (z >>> 15), 0x735a_2d97);
  return (z ^ (z >>> 15)) >>> 0;
}
