import type { OutputOptions, OutputRecord } from "@holdfast/engine";
import { anExec } from "./double.ts";

export const FLOOD_RECORD_BYTES = 65_536;
/**
 * Maximum number of records that are produced. Socket buffers have room for far fewer, and a server without
 * backpressure would buffer all of them.
 */
const MOST_RECORDS = 2_000;

/** An exec that produces output as fast as its reader takes it. */
export class Flood {
  produced = 0;
  isOver = false;

  readonly output = (_id: string, options: OutputOptions) => this.#read(options);

  /** Resolves when the server has stopped asking for more output. */
  async held(): Promise<void> {
    for (let seen = -1; seen !== this.produced; ) {
      seen = this.produced;
      await new Promise((resolve) => setTimeout(resolve, 300));
    }
  }

  async *#read({ signal }: OutputOptions): AsyncGenerator<OutputRecord, void, undefined> {
    try {
      yield { type: "start", cursor: "exe_1.k.0", exec: anExec({ status: "running" }) };
      for (; this.produced < MOST_RECORDS; this.produced += 1) {
        signal.throwIfAborted();
        yield { type: "stdout", cursor: "exe_1.k.1", at: 0, data: Buffer.alloc(FLOOD_RECORD_BYTES) };
      }
    } finally {
      this.isOver = true;
    }
  }
}
