import type { Stat } from "@holdfast/engine";
import type { Channel } from "../wire/channel.ts";
import { closeHandle, readFile } from "../wire/file-codec.ts";

const CHUNK_BYTES = 524_288;
const READS_AHEAD = 4;

interface Piece {
  length: number;
  data: Promise<Uint8Array>;
}

/**
 * The bytes of an open file. A few reads are always in flight ahead of the consumer. The body has at most the size that
 * the stat reported, so that a file that grows meanwhile still fits its announced length. If the file shrinks
 * meanwhile, the body ends early. A file for which the stat reports no size (as in /proc) is read to its end.
 *
 * The handle is closed at the end, on any error, when the consumer returns and when the signal is aborted. This holds
 * even if the consumer never called `next`. A generator function could not close the handle then, because its `finally`
 * runs only after a first `next`.
 */
export class FileBody implements AsyncIterableIterator<Uint8Array, undefined> {
  readonly #channel: Channel;
  readonly #handle: number;
  readonly #signal: AbortSignal;
  readonly #window: number;
  /** File position of the next piece to consume. */
  #position: number;
  /** File position of the next piece to request. */
  #asked: number;
  readonly #end: number;
  #ahead: Piece[] = [];
  #open = true;

  constructor(
    channel: Channel,
    file: { handle: number; stat: Stat },
    range: { offset: number; length: number | null },
    signal: AbortSignal,
  ) {
    const size = file.stat.sizeBytes === 0 ? Number.POSITIVE_INFINITY : file.stat.sizeBytes;
    this.#channel = channel;
    this.#handle = file.handle;
    this.#signal = signal;
    this.#window = size === Number.POSITIVE_INFINITY ? 1 : READS_AHEAD;
    this.#position = range.offset;
    this.#asked = range.offset;
    this.#end = Math.min(size, range.length === null ? size : range.offset + range.length);
    signal.addEventListener("abort", this);
    if (signal.aborted) this.#close();
    this.#readAhead();
  }

  [Symbol.asyncIterator](): this {
    return this;
  }

  handleEvent(): void {
    this.#close();
  }

  async next(): Promise<IteratorResult<Uint8Array, undefined>> {
    this.#signal.throwIfAborted();
    const piece = this.#ahead.shift();
    if (!this.#open || piece === undefined) return this.#close();
    try {
      const data = await piece.data;
      if (data.length === 0) return this.#close();
      this.#position += data.length;
      if (data.length < piece.length) this.#startOver();
      this.#readAhead();
      if (this.#position >= this.#end) this.#close();
      return { value: data, done: false };
    } catch (error) {
      this.#close();
      throw error;
    }
  }

  return(): Promise<IteratorResult<Uint8Array, undefined>> {
    return Promise.resolve(this.#close());
  }

  /**
   * Discards the pieces that were requested ahead, because the piece before them was shorter than requested and left a
   * gap. Reading continues where the short piece ended.
   */
  #startOver(): void {
    this.#ahead = [];
    this.#asked = this.#position;
  }

  #readAhead(): void {
    while (this.#open && this.#ahead.length < this.#window && this.#asked < this.#end) {
      const length = Math.min(CHUNK_BYTES, this.#end - this.#asked);
      const data = this.#channel.request(readFile(this.#handle, this.#asked, length), this.#signal);
      // Prevents an unhandled rejection, because the consumer may never read this piece. A consumer that reads it still
      // receives the error.
      data.catch(() => {});
      this.#ahead.push({ length, data });
      this.#asked += length;
    }
    if (this.#ahead.length === 0) this.#close();
  }

  #close(): { value: undefined; done: true } {
    if (this.#open) {
      this.#open = false;
      this.#ahead = [];
      this.#signal.removeEventListener("abort", this);
      this.#channel.post(closeHandle(this.#handle));
    }
    return { value: undefined, done: true };
  }
}
