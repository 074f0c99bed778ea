import { isTerminal, type OutputStream } from "@holdfast/contract";
import type { ExecApi, OutputRecord } from "@holdfast/engine";

/**
 * Yields the records of an exec until it ends. The engine's streams have a maximum duration, so this function opens a
 * new stream at the last cursor when one ends early.
 */
export async function* records(
  execs: ExecApi,
  id: string,
  signal: AbortSignal,
  stream?: OutputStream,
): AsyncGenerator<OutputRecord, void, undefined> {
  for (let cursor: string | undefined; ; ) {
    for await (const record of execs.output(id, { cursor, stream, follow: true, signal })) {
      cursor = record.cursor;
      yield record;
      if (record.type === "end") return;
    }
    signal.throwIfAborted();
    // If the status of the exec is final, no stream will report its end any more. The status is final if the exec has
    // ended, its record was deleted, or its outcome is unknown.
    if (isTerminal((await execs.get(id)).status)) return;
  }
}
