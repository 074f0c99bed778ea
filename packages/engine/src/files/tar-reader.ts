import { type Extract, extract, type Header } from "tar-stream";

export interface TarPart {
  header: Header;
  /** The entry's content. Reading may stop at any point; the rest is then skipped. */
  body: AsyncIterable<Uint8Array>;
}

/** The data is not a tar archive, or the archive is damaged. */
export class BrokenArchive extends Error {
  constructor(cause: Error) {
    super(cause.message, { cause });
    this.name = "BrokenArchive";
  }
}

/**
 * Parses an archive while it arrives, one entry at a time, with backpressure on the source. If the archive is damaged,
 * the source fails or the signal aborts, the wait for the next entry and the current entry's body both end with an
 * error.
 */
export class TarReader {
  readonly #parser = extract();
  readonly #parts = this.#parser[Symbol.asyncIterator]();
  readonly #signal: AbortSignal;
  readonly #abort = () => this.#end(this.#signal.reason);
  #body: AsyncIterator<Uint8Array> | null = null;
  /** The damage that the parser found in the archive. */
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

  /** Returns the next entry, or null at the end of the archive. */
  async next(): Promise<TarPart | null> {
    try {
      while (this.#body !== null) if ((await this.#body.next()).done) this.#body = null;
      const { done, value } = await this.#parts.next();
      if (done) return null;
      const chunks = (value as unknown as AsyncIterable<Uint8Array>)[Symbol.asyncIterator]();
      // For a directory the body is not stored, because `next` would wait for its end, and the parser never ends the
      // body of a directory.
      if (value.header.type !== "directory") this.#body = chunks;
      return { header: value.header, body: withoutClosing(chunks) };
    } catch (error) {
      throw this.why(error);
    }
  }

  /**
   * Returns the cause of an error that a body threw. If the source failed, the signal aborted or the archive is
   * damaged, the body throws only a consequence of that.
   */
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

/**
 * Yields the chunks of one entry. If the caller stops early, the parser's iterator is not closed, because closing it
 * would end the parsing of the whole archive.
 */
async function* withoutClosing(
  chunks: AsyncIterator<Uint8Array>,
): AsyncGenerator<Uint8Array, void, undefined> {
  for (let step = await chunks.next(); !step.done; step = await chunks.next()) yield step.value;
}

/** Feeds the archive to the parser, with backpressure. */
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
