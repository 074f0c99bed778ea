/**
 * A waiting line in which every owner is as far from its turn as any other, however many each has in it: the owners take
 * turns, and each owner's own come in the order they joined.
 */
export class FairLine<Item> {
  /** In the order of their next turn. */
  readonly #byOwner = new Map<string | null, Item[]>();
  #length = 0;

  get length(): number {
    return this.#length;
  }

  join(owner: string | null, item: Item): void {
    const own = this.#byOwner.get(owner);
    if (own === undefined) this.#byOwner.set(owner, [item]);
    else own.push(item);
    this.#length += 1;
  }

  /** Whose turn it is; undefined where nobody waits. */
  next(): Item | undefined {
    for (const [owner, own] of this.#byOwner) {
      const item = own.shift();
      // To the end of the round.
      this.#byOwner.delete(owner);
      if (own.length > 0) this.#byOwner.set(owner, own);
      if (item === undefined) continue;
      this.#length -= 1;
      return item;
    }
    return undefined;
  }

  /** False where it is not in the line any more. */
  leave(item: Item): boolean {
    for (const own of this.#byOwner.values()) {
      const at = own.indexOf(item);
      if (at < 0) continue;
      own.splice(at, 1);
      this.#length -= 1;
      return true;
    }
    return false;
  }
}
