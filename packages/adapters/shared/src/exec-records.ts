import { type Exec, HoldfastError, isTerminal, type OutputStream } from "@holdfast/contract";
import type { ExecApi, OutputRecord } from "@holdfast/engine";

/**
 * Yields the records of an exec until it ends. The engine's streams have a maximum duration, so this function opens a
 * new stream at the last cursor when one ends early. In the `end` record, the exec is `truncated` if any of the streams
 * lacked output. The last stream alone does not show that: it begins at a cursor and does not report that the beginning
 * of the output was already dropped.
 */
export async function* records(
  execs: ExecApi,
  id: string,
  signal: AbortSignal,
  stream?: OutputStream,
): AsyncGenerator<OutputRecord, void, undefined> {
  let truncated = false;
  let wasOver = false;
  for (let cursor: string | undefined; ; ) {
    const before = cursor;
    for await (const record of execs.output(id, { cursor, stream, follow: true, signal })) {
      cursor = record.cursor;
      if ("exec" in record) truncated ||= record.exec.truncated;
      if (record.type !== "end") yield record;
      else return yield { ...record, exec: { ...record.exec, truncated } };
    }
    signal.throwIfAborted();
    // If the exec ended just when a stream reached its maximum duration, the next stream reports the end. If that
    // stream, opened after the exec's end, reports neither output nor the end, no later stream will, so the iteration
    // stops.
    if (wasOver && cursor === before) return;
    wasOver = isTerminal((await execs.get(id)).status);
  }
}

/** The error for a reader that cannot get the whole output: a normal end would look like complete output. */
export const outputMissing = ({ id, sandboxId }: Exec): HoldfastError =>
  new HoldfastError("output_dropped", {
    sandboxId,
    execId: id,
    message: "A part of the command's output is no longer kept.",
  });
