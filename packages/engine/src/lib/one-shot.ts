/**
 * An event that happens at most once. A caller that stops waiting can remove its listener, which is impossible with a
 * promise. Listeners therefore do not accumulate on an event that happens late, such as the end of an exec.
 */
export class OneShot {
  readonly #listeners = new Set<() => void>();
  #isSet = false;
  #controller: AbortController | null = null;

  get isSet(): boolean {
    return this.#isSet;
  }

  /** Sets the event and notifies its listeners before it returns. Only the first call has an effect. */
  set(): void {
    if (this.#isSet) return;
    this.#isSet = true;
    for (const listener of this.#listeners) listener();
    this.#listeners.clear();
    this.#controller?.abort();
  }

  /**
   * Calls the listener once: when the event is set, or now if it is set already. The returned function removes the
   * listener.
   */
  onSet(listener: () => void): () => void {
    if (this.#isSet) {
      listener();
      return () => {};
    }
    this.#listeners.add(listener);
    return () => {
      this.#listeners.delete(listener);
    };
  }

  /**
   * Resolves when the event is set. The promise's listener can't be removed earlier, unlike one that was added with
   * `onSet`.
   */
  get promise(): Promise<void> {
    return new Promise((resolve) => this.onSet(resolve));
  }

  /** A signal that aborts when the event is set. It is created at its first use, because most events need none. */
  get signal(): AbortSignal {
    this.#controller ??= new AbortController();
    if (this.#isSet) this.#controller.abort();
    return this.#controller.signal;
  }
}

/** A one-shot event for callers that may wait for it and may not set it. */
export type OneShotEvent = Omit<OneShot, "set">;
