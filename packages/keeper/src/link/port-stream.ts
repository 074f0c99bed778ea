import type { Socket } from "node:net";
import { Duplex } from "node:stream";
import { StreamCut } from "@holdfast/engine";

const HEADER_BYTES = 4;
const END = Buffer.alloc(HEADER_BYTES);
/** Data below this size is copied behind its header instead of being sent as a part of its own. */
const JOINED_BYTES = 8_192;
/** A chunk's size is a u32. */
const CHUNK_LIMIT = 0xffff_ffff;
/** How long the keeper may take, once both directions have ended, to hand the last bytes to whoever is at the port. */
const LINGER_MS = 15_000;

/**
 * The bytes of a stream, once its dial was answered. Over the socket both directions are chunks, of which an empty one is
 * the end: a socket that closes without it was cut, and then the stream fails with `StreamCut` instead of ending. Each
 * direction ends by itself. The socket is not read from while nobody reads, so the keeper in turn does not read the port.
 *
 * When both directions have ended, the keeper closes the socket, and not this side: it may still have bytes for a port
 * that reads slowly. The signal is the stream's for as long as it lives.
 */
export class KeeperStream extends Duplex {
  readonly #socket: Socket;
  readonly #header = Buffer.alloc(HEADER_BYTES);
  #headerBytes = 0;
  /** What is still to come of a chunk. */
  #left = 0;
  /** The other side's end came. */
  #ended = false;
  /** This side's end was sent. */
  #finished = false;

  /** Takes over a socket that is paused and has no listeners but for errors. `first` came behind the answer. */
  constructor(socket: Socket, first: Buffer, signal: AbortSignal) {
    super({ allowHalfOpen: true });
    this.#socket = socket;
    // Who uses the stream hears of its errors; they are not to end the server where it is being let go of.
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
    // An empty chunk would be the end.
    if (size === 0) {
      done();
    } else if (size > CHUNK_LIMIT) {
      this.#fail("more was written at once than a chunk can hold");
    } else {
      parts[0]?.writeUInt32LE(size);
      this.#put(size < JOINED_BYTES ? [Buffer.concat(parts)] : parts, done);
    }
  }

  /** `done` is not called where it fails: then the stream does. */
  #put(parts: readonly Buffer[], done: () => void): void {
    const socket = this.#socket;
    const last = parts.length - 1;
    socket.cork();
    for (const [index, part] of parts.entries()) {
      if (index < last) socket.write(part);
      else socket.write(part, (error) => (error ? this.#fail("the port takes no more") : done()));
    }
    socket.uncork();
  }

  #take(chunk: Buffer): void {
    for (let at = 0; at < chunk.length && !this.destroyed; ) {
      if (this.#ended) {
        this.#fail("the keeper broke the protocol: bytes behind the end");
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

  /** What came up to the other side's end is read first: it is whole, whatever happened to the other direction. */
  #fail(why: string): void {
    const error = new StreamCut(why);
    if (this.#ended && !this.readableEnded) this.once("end", () => this.destroy(error));
    else this.destroy(error);
  }
}
