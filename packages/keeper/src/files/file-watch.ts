import { type FileChange, normalisePath } from "@holdfast/contract";
import type { Channel } from "./channel.ts";
import { type Change, endWatch, readWatch } from "./file-codec.ts";

const CHANGES_AT_ONCE = 1_000;
/** A read is answered within this, changes or not, so that one whose asker is gone does not wait for ever. */
const WAIT_MS = 30_000;

/**
 * The changes of one watch, asked for when they are wanted: a consumer that is slow, or gone, makes the other side drop
 * some, and say so. A lost link loses the watch and is the consumer's error; the end of the signal is just the end.
 *
 * The watch is ended however this ends, also where the first change was never asked for: that is why this is no
 * generator, whose `return` would wait for a change besides.
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
  /** The reads of several callers come one after the other. */
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
