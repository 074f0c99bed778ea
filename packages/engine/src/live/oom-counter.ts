/** Counts the out-of-memory kills of one instance that are already recorded as events in the timeline. */
export class OomCounter {
  #kills = 0;
  #seenAt = Number.NEGATIVE_INFINITY;

  get kills(): number {
    return this.#kills;
  }

  /** When a kill was last seen; -Infinity before the first one. */
  get seenAt(): number {
    return this.#seenAt;
  }

  /** Raises the count after new kills were observed. */
  raise(kills: number, now: number): void {
    this.#kills = kills;
    this.#seenAt = now;
  }

  /** Lowers the count again if the kills could not be recorded, so that the next observation counts them. */
  undo(kills: number): void {
    this.#kills = Math.min(this.#kills, kills);
  }

  /** Sets the count to the kills that an earlier server has recorded, or to zero for a new instance. */
  reset(kills: number): void {
    this.#kills = kills;
  }
}
