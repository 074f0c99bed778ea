import type { Socket } from "node:net";
import { Duplex } from "node:stream";
import { StreamCut } from "@holdfast/engine";

const HEADER_BYTES = 4;
const END = Buffer.alloc(HEADER_BYTES);
/**
 * Data below this size is copied into one buffer with the chunk's header. Larger data is written after the header
 * without a copy.
 */
const JOINED_BYTES = 8_192;
/** Maximum size of a chunk: the largest value of its size field, which is a u32. */
const CHUNK_LIMIT = 0xffff_ffff;
/**
 * Time for which the keeper may still deliver bytes to the port after both directions have ended. After that the socket
 * is closed.
 */
const LINGER_MS = 15_000;

/**
 * The bytes of a stream after its dial was answered. On the socket both directions consist of chunks, and an empty
 * chunk ends a direction. Each direction ends separately. If the socket closes before both directions have ended, the
 * stream was cut: it fails with `StreamCut`. The socket is not read while the stream is not read, so the keeper in turn
 * does not read the port.
 *
 * After both directions have ended, the keeper closes the socket and this class does not: the keeper may still have
 * bytes for a port that reads slowly. If the signal aborts, at any time, the stream fails at once.
 */
export class KeeperStream extends Duplex {
  readonly #socket: Socket;
  readonly #header = Buffer.alloc(HEADER_BYTES);
  #headerBytes = 0;
  /** Number of bytes of the current chunk that have not arrived yet. */
  #left = 0;
  /** Whether the keeper has sent the empty chunk that ends the direction from the port. */
  #ended = false;
  /** Whether this class has sent the empty chunk that ends the direction to the port. */
  #finished = false;

  /**
   * Takes ownership of a paused socket that has only error listeners. `first` contains bytes received after the answer.
   */
  constructor(socket: Socket, first: Buffer, signal: AbortSignal) {
    super({ allowHalfOpen: true });
    this.#socket = socket;
    // An `error` event without a listener would end the server. This listener stays even if the users of the stream
    // remove their own listeners.
    this.on("error", () => {});
    const abort = () => {
      this.destroy(signal.reason instanceof Error ? signal.reason : new StreamCut(String(signal.reason)));
      socket.destroy();
    };
    signal.addEventListener("abort", abort);
    socket.on("data", (chunk: Buffer) => this.#take(chunk));
    socket.on("close", () => {
      signal.removeEventListener("abort", abort);
      if (!this.#ended || !this.#finished) this.#fail("the connection to the port was cut");
    });
    this.#take(first);
  }

  override _read(): void {
    this.#socket.resume();
  }

  override _write(chunk: Buffer, _encoding: BufferEncoding, done: () => void): void {
    this.#send([chunk], done);
  }

  override _writev(chunks: { chunk: Buffer }[], done: () => void): void {
    this.#send(
      chunks.map(({ chunk }) => chunk),
      done,
    );
  }

  override _final(done: () => void): void {
    this.#put([END], () => {
      this.#finished = true;
      done();
    });
  }

  override _destroy(error: Error | null, done: (error: Error | null) => void): void {
    const socket = this.#socket;
    if (error !== null || !this.#ended || !this.#finished || socket.closed) {
      socket.destroy();
      done(error);
      return;
    }
    const timer = setTimeout(() => socket.destroy(), LINGER_MS);
    socket.once("close", () => {
      clearTimeout(timer);
      done(null);
    });
    socket.resume();
  }

  #send(data: readonly Buffer[], done: () => void): void {
    const size = data.reduce((sum, each) => sum + each.length, 0);
    const parts = [Buffer.allocUnsafe(HEADER_BYTES), ...data];
    // Sends nothing for empty data, because an empty chunk would end the direction.
    if (size === 0) {
      done();
    } else if (size > CHUNK_LIMIT) {
      this.#fail("more was written at once than a chunk can hold");
    } else {
      parts[0]?.writeUInt32LE(size);
      this.#put(size < JOINED_BYTES ? [Buffer.concat(parts)] : parts, done);
    }
  }

  /**
   * Writes to the socket, and calls `done` once the data was sent. If the write fails, the stream fails and `done` is
   * not called.
   */
  #put(parts: readonly Buffer[], done: () => void): void {
    const socket = this.#socket;
    const last = parts.length - 1;
    socket.cork();
    for (const [index, part] of parts.entries()) {
      if (index < last) socket.write(part);
      else socket.write(part, (error) => (error ? this.#fail("the port accepts no more") : done()));
    }
    socket.uncork();
  }

  #take(chunk: Buffer): void {
    for (let at = 0; at < chunk.length && !this.destroyed; ) {
      if (this.#ended) {
        this.#fail("the keeper broke the protocol: bytes after the end");
        return;
      }
      if (this.#left === 0) {
        at += this.#takeHeader(chunk, at);
        continue;
      }
      const piece = chunk.subarray(at, at + this.#left);
      at += piece.length;
      this.#left -= piece.length;
      if (!this.push(piece)) this.#socket.pause();
    }
  }

  #takeHeader(chunk: Buffer, at: number): number {
    const copied = chunk.copy(this.#header, this.#headerBytes, at);
    this.#headerBytes += copied;
    if (this.#headerBytes < HEADER_BYTES) return copied;
    this.#headerBytes = 0;
    this.#left = this.#header.readUInt32LE();
    if (this.#left === 0) {
      this.#ended = true;
      this.push(null);
    }
    return copied;
  }

  /**
   * Fails the stream. If the direction from the port has already ended, its data is complete and is delivered first.
   */
  #fail(why: string): void {
    const error = new StreamCut(why);
    if (this.#ended && !this.readableEnded) this.once("end", () => this.destroy(error));
    else this.destroy(error);
  }
}
