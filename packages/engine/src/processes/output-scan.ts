import type { ExecId, OutputStream } from "@holdfast/contract";
import { KeeperRefusal, type Link } from "../ports/index.ts";

/**
 * Maximum number of reads per call of `check`, because a command may print without end. The next call continues at the
 * same position.
 */
const READS_AT_ONCE = 16;
const READ_BYTES = 262_144;

/**
 * Searches a run's output for a text, from the beginning. Each byte is read only once. The text may span several
 * records.
 */
export class OutputScan {
  readonly #id: ExecId;
  readonly #wanted: Buffer;
  readonly #tails = new Map<OutputStream, Buffer>();
  #cursor = 0;
  #isFound = false;

  constructor(id: ExecId, text: string) {
    this.#id = id;
    this.#wanted = Buffer.from(text);
  }

  /** Reads new output, and returns whether the text has appeared. */
  async check(link: Link, signal: AbortSignal): Promise<boolean> {
    for (let reads = 0; reads < READS_AT_ONCE && !this.#isFound; reads += 1) {
      const from = this.#cursor;
      const slice = await this.#read(link, signal);
      for (const { stream, data } of slice?.records ?? []) this.#take(stream, data);
      if (slice === null) continue;
      this.#cursor = slice.next;
      if (slice.next === from || slice.next >= slice.end) break;
    }
    return this.#isFound;
  }

  /** Reads the next part of the output. If the journal has dropped that part, skips it and returns null. */
  async #read(link: Link, signal: AbortSignal) {
    try {
      return await link.readExec(this.#id, { cursor: this.#cursor, maxBytes: READ_BYTES, waitMs: 0 }, signal);
    } catch (error) {
      if (!(error instanceof KeeperRefusal) || error.reason !== "below_floor" || error.floor === null)
        throw error;
      this.#cursor = error.floor;
      this.#tails.clear();
      return null;
    }
  }

  #take(stream: OutputStream, data: Uint8Array): void {
    const text = Buffer.concat([this.#tails.get(stream) ?? Buffer.alloc(0), data]);
    this.#isFound ||= text.includes(this.#wanted);
    const keep = Math.min(this.#wanted.length - 1, text.length);
    this.#tails.set(stream, Buffer.from(text.subarray(text.length - keep)));
  }
}
