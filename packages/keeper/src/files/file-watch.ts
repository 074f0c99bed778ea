import { type FileChange, normalisePath } from "@holdfast/contract";
import type { Channel } from "../wire/channel.ts";
import { type Change, endWatch, readWatch } from "../wire/file-codec.ts";

const CHANGES_AT_ONCE = 1_000;
/** Maximum time until the keeper answers a read of changes, even without changes, so that an abandoned read ends. */
const WAIT_MS = 30_000;

/**
 * The changes of one watch, read on demand. If the consumer is slow or has stopped reading, the keeper drops changes
 * and reports an overflow. A lost link ends the watch with an error; an aborted signal ends it normally.
 *
 * The watch is closed however the iteration ends, even if the consumer never called `next`. A generator function could
 * not close the watch then, and its `return` would first wait for the next change.
 */
export class FileWatch implements AsyncIterableIterator<FileChange, undefined> {
  readonly #channel: Channel;
  readonly #watch: number;
  readonly #path: string;
  readonly #signal: AbortSignal;
  readonly #ended = new AbortController();
  #changes: Change[] = [];
  #at = 0;
  #more = true;
  /**
   * The last read that was started. A new read starts only after the last one has ended, so that only one read runs at
   * a time.
   */
  #turn: Promise<unknown> = Promise.resolve();

  constructor(channel: Channel, watch: number, path: string, signal: AbortSignal) {
    this.#channel = channel;
    this.#watch = watch;
    this.#path = normalisePath(path) ?? path;
    this.#signal = signal;
    signal.addEventListener("abort", this);
    if (signal.aborted) this.#end();
  }

  [Symbol.asyncIterator](): this {
    return this;
  }

  handleEvent(): void {
    this.#end();
  }

  next(): Promise<IteratorResult<FileChange, undefined>> {
    const next = this.#turn.then(() => this.#next());
    this.#turn = next.catch(() => {});
    return next;
  }

  return(): Promise<IteratorResult<FileChange, undefined>> {
    return Promise.resolve(this.#end());
  }

  async #next(): Promise<IteratorResult<FileChange, undefined>> {
    for (;;) {
      if (this.#ended.signal.aborted) return this.#end();
      const change = this.#changes[this.#at++];
      if (change !== undefined) return { value: this.#named(change), done: false };
      if (!this.#more) return this.#end();
      await this.#read();
    }
  }

  async #read(): Promise<void> {
    const order = { max: CHANGES_AT_ONCE, waitMs: WAIT_MS };
    try {
      const { more, changes } = await this.#channel.request(
        readWatch(this.#watch, order),
        this.#ended.signal,
      );
      this.#more = more;
      this.#changes = changes;
      this.#at = 0;
    } catch (error) {
      if (this.#ended.signal.aborted) return;
      this.#end();
      throw error;
    }
  }

  #named({ kind, directory, relative }: Change): FileChange {
    const base = this.#path === "/" ? "" : this.#path;
    return { kind, directory, path: relative === "" ? this.#path : `${base}/${relative}` };
  }

  #end(): { value: undefined; done: true } {
    if (!this.#ended.signal.aborted) {
      this.#ended.abort();
      this.#changes = [];
      this.#signal.removeEventListener("abort", this);
      this.#channel.post(endWatch(this.#watch));
    }
    return { value: undefined, done: true };
  }
}
