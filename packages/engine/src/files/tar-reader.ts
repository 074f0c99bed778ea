import { type Extract, extract, type Header } from "tar-stream";

export interface TarPart {
  header: Header;
  /** May be left at any point; the rest of it is skipped. */
  body: AsyncIterable<Uint8Array>;
}

/** The archive is none, or is damaged. */
export class BrokenArchive extends Error {
  constructor(cause: Error) {
    super(cause.message, { cause });
    this.name = "BrokenArchive";
  }
}

/**
 * Takes an archive apart as it comes in, no faster than its parts are dealt with, one after the other. Whatever ends it
 * early, damage, a source that fails or the signal, ends the wait for the next part and for the body of this one.
 */
export class TarReader {
  readonly #parser = extract();
  readonly #parts = this.#parser[Symbol.asyncIterator]();
  readonly #signal: AbortSignal;
  readonly #abort = () => this.#end(this.#signal.reason);
  #body: AsyncIterator<Uint8Array> | null = null;
  /** Found by the parser itself. */
  #damage: Error | null = null;
  #ended: { why: unknown } | null = null;

  constructor(archive: AsyncIterable<Uint8Array>, signal: AbortSignal) {
    this.#signal = signal;
    this.#parser.on("error", (error: Error) => {
      this.#damage = error;
    });
    signal.addEventListener("abort", this.#abort, { once: true });
    if (signal.aborted) this.#abort();
    feed(archive, this.#parser).catch((error: unknown) => this.#end(error));
  }

  /** Null at the end. */
  async next(): Promise<TarPart | null> {
    try {
      while (this.#body !== null) if ((await this.#body.next()).done) this.#body = null;
      const { done, value } = await this.#parts.next();
      if (done) return null;
      const chunks = (value as unknown as AsyncIterable<Uint8Array>)[Symbol.asyncIterator]();
      // That of a directory never ends.
      if (value.header.type !== "directory") this.#body = chunks;
      return { header: value.header, body: untilLeft(chunks) };
    } catch (error) {
      throw this.why(error);
    }
  }

  /** What an error is about that came out of a body, by whatever way. */
  why(error: unknown): unknown {
    if (this.#ended !== null) return this.#ended.why;
    return this.#damage === null ? error : new BrokenArchive(this.#damage);
  }

  close(): void {
    this.#signal.removeEventListener("abort", this.#abort);
    this.#parser.destroy();
  }

  #end(why: unknown): void {
    this.#ended ??= { why };
    this.#parser.destroy(new Error("the archive ended early"));
  }
}

/** To leave the parser's own iterator before its end would end the archive. */
async function* untilLeft(chunks: AsyncIterator<Uint8Array>): AsyncGenerator<Uint8Array, void, undefined> {
  for (let step = await chunks.next(); !step.done; step = await chunks.next()) yield step.value;
}

/** Gives the archive to the parser as fast as that takes it. */
async function feed(archive: AsyncIterable<Uint8Array>, parser: Extract): Promise<void> {
  let wake = () => {};
  for (const event of ["drain", "close"] as const) parser.on(event, () => wake());
  for await (const chunk of archive) {
    if (parser.destroying) return;
    const taken = new Promise<void>((resolve) => {
      wake = resolve;
    });
    if (!parser.write(chunk)) await taken;
  }
  parser.end(undefined);
}
