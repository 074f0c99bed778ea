import type { ServerResponse } from "node:http";
import { type SendLimits, taken } from "./stream.ts";

/** Written out as soon as so much has come together. */
const CHUNK_BYTES = 65_536;
/** A piece up to this size costs less to copy than to hand to the kernel by itself. */
const COPIED_BYTES = 4_096;

/**
 * Writes many small pieces as few chunks: chatty commands make a record per line, and each chunk of a response costs both
 * ends more than the bytes in it. What comes within one turn of the event loop goes out together at its end, so that
 * nothing waits for more to come. Large pieces are written as they are, uncopied.
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

  /** Returns, or resolves, when the reader takes more. Rejects when it has left, or takes nothing for too long. */
  write(pieces: readonly Uint8Array[]): Promise<void> | void {
    if (pieces.length > 0 && this.#pieces.length === 0) process.nextTick(() => this.flush());
    for (const piece of pieces) {
      this.#pieces.push(piece);
      this.#size += piece.length;
    }
    if (this.#size >= CHUNK_BYTES) this.flush();
    return taken(this.#response, this.#limits);
  }

  /** Whether the kernel has all that was written, so that nothing here refers to any of it. */
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
