/** What was written without a flush waits at most this long for one of its own. */
export const FLUSH_AFTER_MS = 200;

/**
 * Bounds how long a commit that outlives the server only stays open to a power cut when nothing durable follows it. All
 * that is owed by then shares one flush, and there is one at a time; it runs in the thread pool, so nobody waits for it.
 *
 * A flush that fails is not repeated by itself: nothing was promised on it, and the kernel reports the same failure to the
 * next COMMIT that has to be durable. The close makes up for it, or fails.
 */
export class LateFlush {
  readonly #flush: () => Promise<void>;
  #timer: NodeJS.Timeout | undefined;
  #running: Promise<void> | undefined;
  #owed = false;
  #closed = false;

  constructor(flush: () => Promise<void>) {
    this.#flush = flush;
  }

  owe(): void {
    this.#owed = true;
    this.#schedule();
  }

  /** Pays at once what is owed; nothing runs afterwards. */
  async close(): Promise<void> {
    this.#closed = true;
    clearTimeout(this.#timer);
    await this.#running;
    if (this.#owed) await this.#flush();
    this.#owed = false;
  }

  #schedule(): void {
    if (!this.#owed || this.#closed || this.#timer !== undefined) return;
    this.#timer = setTimeout(() => {
      this.#running = this.#run();
    }, FLUSH_AFTER_MS).unref();
  }

  async #run(): Promise<void> {
    this.#owed = false;
    const failed = await this.#flush().then(
      () => false,
      () => true,
    );
    this.#timer = undefined;
    this.#running = undefined;
    this.#schedule();
    this.#owed ||= failed;
  }
}
