import { isTerminal, type OutputStream } from "@holdfast/contract";
import type { ExecApi, OutputRecord } from "@holdfast/engine";

/** A stream lasts as long as the process; the engine's own are over sooner, and are taken up again where they were. */
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
    // Forgotten, or its outcome can't be had: no stream can tell the end of it.
    if (isTerminal((await execs.get(id)).status)) return;
  }
}
