/**
 * How long things have been as they are, in time that was lived through: who asks says how much has passed since the last
 * time. The time of day can be set, and a jump of it must not make a healthy thing look old, nor an old one young.
 */
export class Ages {
  #ages = new Map<string, { mark: string; ms: number }>();

  /** Of everything there is now. One whose mark is another than last time is new, and begins with what is given for it. */
  advance(present: Iterable<Aging>, livedMs: number): Map<string, number> {
    const next = new Map<string, { mark: string; ms: number }>();
    for (const { key, mark, fromMs = 0 } of present) {
      const before = this.#ages.get(key);
      next.set(key, { mark, ms: before?.mark === mark ? before.ms + livedMs : fromMs });
    }
    this.#ages = next;
    return new Map([...next].map(([key, { ms }]) => [key, ms]));
  }
}

export interface Aging {
  key: string;
  /** Changes when the thing does. */
  mark: string;
  /** How old it is when it is first seen; 0 where that is not known. */
  fromMs?: number;
}
