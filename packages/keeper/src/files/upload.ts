import type { Stat, WriteOptions } from "@holdfast/engine";
import type { Channel } from "../wire/channel.ts";
import { closeHandle, commitFile, createFile, writeFile } from "../wire/file-codec.ts";
import { DATA_LIMIT } from "../wire/protocol.ts";
import { WireError } from "../wire/wire.ts";

/** Chunks of the body are combined until they have this size, and then written together. */
const CHUNK_BYTES = 524_288;
const CHUNKS_TOGETHER = 64;
const WRITES_AHEAD = 4;

interface Upload {
  path: string;
  body: AsyncIterable<Uint8Array>;
  options: WriteOptions;
}

/**
 * Writes a whole file: either all data arrives and the target is replaced, or the target stays unchanged. The commit is
 * sent only after every write was answered. Otherwise a write could fail after the commit was sent, and half a file
 * would be published. If body, link or signal fails, the handle is closed, which removes the unfinished file.
 */
export async function upload(channel: Channel, file: Upload, signal: AbortSignal): Promise<Stat> {
  const close = (opened: { handle: number }) => channel.post(closeHandle(opened.handle));
  const { handle } = await channel.request(createFile(file.path, file.options), signal, close);
  const pour = new Pour(channel, handle, signal);
  try {
    await pour.all(file.body);
    return await channel.request(commitFile(handle), signal);
  } catch (error) {
    channel.post(closeHandle(handle));
    throw error;
  } finally {
    pour.stop();
  }
}

/** Writes a body to an open file, with a few writes in flight at a time. */
class Pour {
  readonly #channel: Channel;
  readonly #handle: number;
  readonly #signal: AbortSignal;
  readonly #writes: Promise<void>[] = [];
  #gathered: Uint8Array[] = [];
  #gatheredBytes = 0;
  #sent = 0;
  #failure: { error: unknown } | null = null;
  /** Rejects the promise that waits for the next chunk of the body; null if no chunk was requested yet. */
  #interrupt: ((error: unknown) => void) | null = null;

  constructor(channel: Channel, handle: number, signal: AbortSignal) {
    this.#channel = channel;
    this.#handle = handle;
    this.#signal = signal;
    signal.addEventListener("abort", this);
  }

  stop(): void {
    this.#signal.removeEventListener("abort", this);
  }

  handleEvent(): void {
    this.#fail(this.#signal.reason);
  }

  #fail(error: unknown): void {
    this.#failure ??= { error };
    this.#interrupt?.(this.#failure.error);
  }

  async all(body: AsyncIterable<Uint8Array>): Promise<void> {
    const chunks = body[Symbol.asyncIterator]();
    try {
      for (;;) {
        const next = await this.#next(chunks);
        if (next.done) break;
        await this.#add(next.value);
      }
      await this.#send();
      await Promise.all(this.#writes);
    } catch (error) {
      // The `return` of the body's iterator is not awaited, because it may never settle if the body hangs.
      Promise.resolve(chunks.return?.()).catch(() => {});
      throw error;
    }
  }

  /** Returns the body's next chunk. Rejects earlier if the signal aborts or a write in flight fails. */
  #next(chunks: AsyncIterator<Uint8Array>): Promise<IteratorResult<Uint8Array>> {
    return new Promise((resolve, reject) => {
      if (this.#failure !== null) return reject(this.#failure.error);
      this.#interrupt = reject;
      chunks.next().then(resolve, reject);
    });
  }

  async #add(chunk: Uint8Array): Promise<void> {
    for (let at = 0; at < chunk.length; at += DATA_LIMIT) {
      const piece = chunk.subarray(at, at + DATA_LIMIT);
      if (this.#gatheredBytes + piece.length > DATA_LIMIT) await this.#send();
      this.#gathered.push(piece);
      this.#gatheredBytes += piece.length;
      if (this.#gatheredBytes >= CHUNK_BYTES) await this.#send();
    }
    if (this.#gathered.length >= CHUNKS_TOGETHER) this.#gathered = [Buffer.concat(this.#gathered)];
  }

  async #send(): Promise<void> {
    if (this.#gatheredBytes === 0) return;
    const data = this.#gathered;
    this.#sent += this.#gatheredBytes;
    this.#gathered = [];
    this.#gatheredBytes = 0;
    if (this.#writes.length >= WRITES_AHEAD) await this.#writes.shift();
    const write = this.#write(data, this.#sent);
    write.catch((error) => this.#fail(error));
    this.#writes.push(write);
  }

  async #write(data: readonly Uint8Array[], expected: number): Promise<void> {
    const size = await this.#channel.request(writeFile(this.#handle, data), this.#signal);
    if (size !== expected) throw new WireError(`the file has ${size} bytes after ${expected} were written`);
  }
}
