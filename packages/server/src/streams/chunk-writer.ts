import type { ServerResponse } from "node:http";
import { type SendLimits, taken } from "./stream.ts";

/** Size at which the buffer is written without waiting for more pieces. */
const CHUNK_BYTES = 65_536;
/** Maximum size of a piece that is copied into the buffer. Copying a small piece is cheaper than a separate write. */
const COPIED_BYTES = 4_096;

/**
 * Combines many small pieces into few chunks. Chatty commands produce a record per line, and each chunk of a response
 * costs both ends more than the bytes in it. Pieces written within one turn of the event loop are sent together at the
 * end of that turn, so no piece waits longer. Large pieces are written without copying.
 */
export class ChunkWriter {
  readonly #response: ServerResponse;
  readonly #limits: SendLimits;
  #pieces: Uint8Array[] = [];
  #size = 0;

  constructor(response: ServerResponse, limits: SendLimits) {
    this.#response = response;
    this.#limits = limits;
  }

  /**
   * Waits until the response accepts more data. Returns undefined instead of a promise if it already does. Fails if the
   * caller has disconnected or has stalled.
   */
  write(pieces: readonly Uint8Array[]): Promise<void> | void {
    if (pieces.length > 0 && this.#pieces.length === 0) process.nextTick(() => this.flush());
    for (const piece of pieces) {
      this.#pieces.push(piece);
      this.#size += piece.length;
    }
    if (this.#size >= CHUNK_BYTES) this.flush();
    return taken(this.#response, this.#limits);
  }

  /** Whether the kernel has accepted all written bytes, so that their buffers can be reused. */
  get isAllSent(): boolean {
    return this.#pieces.length === 0 && this.#response.writableLength === 0;
  }

  flush(): void {
    const pieces = this.#pieces;
    this.#pieces = [];
    this.#size = 0;
    let small: Uint8Array[] = [];
    const writeSmall = () => {
      if (small.length > 0) this.#response.write(Buffer.concat(small));
      small = [];
    };
    for (const piece of pieces) {
      if (piece.length <= COPIED_BYTES) small.push(piece);
      else {
        writeSmall();
        this.#response.write(piece);
      }
    }
    writeSmall();
  }
}
