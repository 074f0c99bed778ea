/** An exec that sends its input back as output, as a terminal does, and records the calls made to it. */
import type { Exec } from "@holdfast/contract";
import type { OutputOptions, OutputRecord } from "@holdfast/engine";
import { anExec, type EngineDouble } from "./double.ts";

export class Echo {
  readonly calls: unknown[] = [];
  /** Number of callers that are currently reading. */
  readers = 0;
  /** Maximum number of bytes that stdin accepts at once. A small number simulates a keeper with a full buffer. */
  takes = Number.POSITIVE_INFINITY;
  /** If set, every call that sends input to the exec throws this error. */
  refusal: Error | null = null;
  #journal = Buffer.alloc(0);
  #ended: Exec | null = null;
  #changed = Promise.withResolvers<void>();

  readonly execs: NonNullable<EngineDouble["execs"]> = {
    output: (_id, options) => this.#read(options),
    writeStdin: async (_id, { offset, data, end }) => {
      this.#refuse();
      const taken = Buffer.from(data).subarray(0, this.takes);
      this.calls.push(["stdin", offset, taken.toString("latin1"), end]);
      this.write(taken);
      return { accepted: this.#journal.length };
    },
    resize: async (_id, { cols, rows }) => {
      this.#refuse();
      this.calls.push(["resize", cols, rows]);
      return anExec();
    },
    signal: async (_id, signal) => {
      this.#refuse();
      this.calls.push(["signal", signal]);
      return anExec();
    },
  };

  write(data: Uint8Array): void {
    this.#journal = Buffer.concat([this.#journal, data]);
    this.#wake();
  }

  end(): void {
    this.#ended = anExec();
    this.#wake();
  }

  #refuse(): void {
    if (this.refusal) throw this.refusal;
  }

  #wake(): void {
    this.#changed.resolve();
    this.#changed = Promise.withResolvers<void>();
  }

  async *#read({ cursor, signal }: OutputOptions): AsyncGenerator<OutputRecord, void, undefined> {
    this.readers += 1;
    const left = new Promise<never>((_, reject) => {
      signal.addEventListener("abort", () => reject(signal.reason));
    });
    left.catch(() => {});
    try {
      let offset = Number(cursor?.split(".").at(-1) ?? 0);
      yield { type: "start", cursor: `exe_1.k.${offset}`, exec: anExec({ status: "running" }) };
      for (;;) {
        signal.throwIfAborted();
        const data = this.#journal.subarray(offset);
        offset = this.#journal.length;
        if (data.length > 0) yield { type: "stdout", cursor: `exe_1.k.${offset}`, at: 1, data };
        else if (this.#ended) {
          yield { type: "end", cursor: `exe_1.k.${offset}`, exec: this.#ended };
          return;
        } else await Promise.race([this.#changed.promise, left]);
      }
    } finally {
      this.readers -= 1;
    }
  }
}
