/**
 * Tracks how long each item has been in its state. The caller passes the time elapsed since the last call instead of a
 * clock reading: the clock can be set, and a jump must not make a new state look old, or an old one new.
 */
export class StateAges {
  #ages = new Map<string, { mark: string; ms: number }>();

  /**
   * Returns the age of each item in `present`. For a new item, and for one whose `mark` has changed, the age is
   * `fromMs`.
   */
  advance(present: Iterable<Aging>, elapsedMs: number): Map<string, number> {
    const next = new Map<string, { mark: string; ms: number }>();
    for (const { key, mark, fromMs = 0 } of present) {
      const before = this.#ages.get(key);
      next.set(key, { mark, ms: before?.mark === mark ? before.ms + elapsedMs : fromMs });
    }
    this.#ages = next;
    return new Map([...next].map(([key, { ms }]) => [key, ms]));
  }
}

interface Aging {
  key: string;
  /** Identifies the item's state: if the mark changes, the item is in a new state. */
  mark: string;
  /**
   * How long the item had already been in its state when `advance` first saw it in that state. Default: 0, for a time
   * that is not known.
   */
  fromMs?: number;
}
