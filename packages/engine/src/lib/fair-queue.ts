/** A queue that serves owners in turn, however many items each has queued. Items of the same owner keep their order. */
export class FairQueue<Item> {
  /** The items of each owner. The owner that is served next comes first. */
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

  /** Removes and returns the next item; undefined if the queue is empty. */
  next(): Item | undefined {
    for (const [owner, own] of this.#byOwner) {
      const item = own.shift();
      // Deleting and adding the owner moves it to the end of the order.
      this.#byOwner.delete(owner);
      if (own.length > 0) this.#byOwner.set(owner, own);
      if (item === undefined) continue;
      this.#length -= 1;
      return item;
    }
    return undefined;
  }

  /** Removes an item. Returns false if it is not in the queue. */
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
