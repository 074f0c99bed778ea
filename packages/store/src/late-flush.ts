/** Maximum time from a write without a disk flush to the flush that follows it. */
export const FLUSH_AFTER_MS = 200;

/**
 * Flushes the log soon after commits that were written without a disk flush. Such commits survive a crash of the server
 * as soon as they are written, but a power cut only after the flush. A durable commit that comes before the late flush
 * flushes them too. All unflushed commits share one flush. Only one flush runs at a time, in the thread pool, so no
 * caller waits for it.
 *
 * After a failed flush, the next attempt follows with the next unflushed commit. No earlier attempt is needed: the
 * commits were never promised to survive a power cut, and the kernel reports the same failure to the next durable
 * COMMIT. `close` flushes the remaining commits, and throws if that fails.
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

  /** Flushes pending writes at once, and stops the timer. */
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
