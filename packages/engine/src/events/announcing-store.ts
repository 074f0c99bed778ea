import type { Store } from "../ports/index.ts";

/**
 * Wraps a store and announces each commit that contains events, so that followers of the timeline read them at once.
 */
export class AnnouncingStore {
  /** The wrapped store, through which the engine writes. */
  readonly store: Store;
  #announced = 0;
  #bell = new AbortController();
  /** Number of followers that wait for announcements. Without followers nothing is announced. */
  followers = 0;

  constructor(store: Store) {
    const commit: Store["commit"] = async (given) => {
      await store.commit(given);
      if (given.events?.length) this.#ring();
    };
    const verbs = new Map<PropertyKey, unknown>([["commit", commit]]);
    this.store = new Proxy(store, {
      get(_, key) {
        if (verbs.has(key)) return verbs.get(key);
        const value: unknown = Reflect.get(store, key, store);
        if (typeof value !== "function") return value;
        verbs.set(key, value.bind(store));
        return verbs.get(key);
      },
    });
  }

  /** Number of commits with events so far. */
  get announced(): number {
    return this.#announced;
  }

  /** A signal that is aborted by the next commit with events. */
  get bell(): AbortSignal {
    return this.#bell.signal;
  }

  #ring(): void {
    this.#announced += 1;
    if (this.followers === 0) return;
    const bell = this.#bell;
    this.#bell = new AbortController();
    bell.abort();
  }
}
