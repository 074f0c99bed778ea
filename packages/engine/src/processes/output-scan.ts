import type { ExecId, OutputStream } from "@holdfast/contract";
import { KeeperRefusal, type Link } from "./ports.ts";

/** Of one look: a command that prints without end is read on in the next. */
const READS_AT_ONCE = 16;
const READ_BYTES = 262_144;

/** Looks for a text in what a run writes, from the beginning on, each byte once. Records may cut the text anywhere. */
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

  /** Whether it was written by now. */
  async look(link: Link, signal: AbortSignal): Promise<boolean> {
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

  /** Null where the head was dropped meanwhile, and is skipped. */
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
