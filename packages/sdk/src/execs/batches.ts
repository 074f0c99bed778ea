import type { Content } from "../api.ts";

interface Batch {
  data: Uint8Array;
  /** Whether this batch is known to be the last one. If false, another batch may or may not follow. */
  isLast: boolean;
}

/**
 * Splits content into batches of at most `limit` bytes. While the consumer processes a batch, about `limit` more bytes
 * of a stream are read ahead and become the next batch. This way, a stream of many small pieces becomes few batches,
 * and no batch is delayed to wait for more data.
 */
export async function* batchesOf(
  content: Content,
  limit: number,
  signal?: AbortSignal,
): AsyncGenerator<Batch, void, undefined> {
  if (typeof content === "string" || content instanceof Uint8Array) {
    const bytes = bytesOf(content);
    for (let at = 0; at < bytes.length; at += limit) {
      yield { data: bytes.subarray(at, at + limit), isLast: at + limit >= bytes.length };
    }
    return;
  }
  const ahead = new ReadAhead(content, limit, signal);
  try {
    for (;;) {
      const batch = await ahead.take();
      if (batch === null) return;
      yield batch;
    }
  } finally {
    ahead.leave();
  }
}

const bytesOf = (piece: string | Uint8Array): Uint8Array =>
  typeof piece === "string" ? Buffer.from(piece) : piece;

/**
 * A buffer between a reader and a consumer. The reader waits only while the buffer is full, the consumer only while it
 * is empty.
 */
class ReadAhead {
  readonly #limit: number;
  readonly #signal: AbortSignal | undefined;
  readonly #abort = () => this.#wake();
  #pieces: Uint8Array[] = [];
  #bytes = 0;
  #isOver = false;
  #hasLeft = false;
  #failure: { error: unknown } | null = null;
  #wake: () => void = () => {};

  constructor(source: AsyncIterable<string | Uint8Array>, limit: number, signal: AbortSignal | undefined) {
    this.#limit = limit;
    this.#signal = signal;
    signal?.addEventListener("abort", this.#abort);
    void this.#read(source);
  }

  async #read(source: AsyncIterable<string | Uint8Array>): Promise<void> {
    try {
      for await (const piece of source) {
        const bytes = bytesOf(piece);
        this.#pieces.push(bytes);
        this.#bytes += bytes.length;
        this.#wake();
        while (this.#bytes >= this.#limit && !this.#hasLeft) await this.#change();
        if (this.#hasLeft) break;
      }
    } catch (error) {
      this.#failure = { error };
    }
    this.#isOver = true;
    this.#wake();
  }

  #change(): Promise<void> {
    return new Promise((resolve) => {
      this.#wake = resolve;
    });
  }

  /** Returns the next batch, or null at the end. A failure of the source is thrown after all data read before it. */
  async take(): Promise<Batch | null> {
    while (this.#bytes === 0 && !this.#isOver && !this.#signal?.aborted) await this.#change();
    this.#signal?.throwIfAborted();
    if (this.#bytes === 0) {
      if (this.#failure !== null) throw this.#failure.error;
      return null;
    }
    const [only] = this.#pieces;
    const all = this.#pieces.length === 1 && only !== undefined ? only : Buffer.concat(this.#pieces);
    const data = all.subarray(0, this.#limit);
    this.#pieces = data.length === all.length ? [] : [all.subarray(data.length)];
    this.#bytes = all.length - data.length;
    this.#wake();
    return { data, isLast: this.#bytes === 0 && this.#isOver && this.#failure === null };
  }

  /** Stops reading. If a read is in progress, it ends when the next piece arrives. */
  leave(): void {
    this.#hasLeft = true;
    this.#signal?.removeEventListener("abort", this.#abort);
    this.#wake();
  }
}
