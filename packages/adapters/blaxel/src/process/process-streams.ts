/** A process's output in the two formats that the client follows. */

import { outputMissing, records } from "@holdfast/adapter-shared";
import type { Exec, HoldfastError, OutputStream } from "@holdfast/contract";
import type { ExecApi } from "@holdfast/engine";
import { processShape } from "../shapes.ts";
import { Collector } from "./collected-output.ts";

/** Called for every record, so that reading the output of a running process is counted as use of its sandbox. */
type OnRecord = () => Promise<void> | void;

const line = (type: string, data: string) => `${JSON.stringify({ type, data })}\n`;

/**
 * Maximum size of the output in the last line of the stream, which repeats the output. The time in which the client
 * parses a line grows with the square of the line's length.
 */
const RESULT_MOST_BYTES = 2 * 1_048_576;

/**
 * Yields `application/x-ndjson`: one line for each piece of output as it arrives, then a last line with the process,
 * encoded as JSON.
 */
export async function* execLines(
  execs: ExecApi,
  { id }: Exec,
  workingDir: string,
  signal: AbortSignal,
): AsyncGenerator<string, void, undefined> {
  const collector = new Collector(RESULT_MOST_BYTES);
  yield line("keepalive", "");
  for await (const record of records(execs, id, signal)) {
    if ("data" in record) {
      const text = collector.take(record.type, record.data);
      if (text !== "") yield line(record.type, text);
    } else if (record.type === "keepalive") yield line("keepalive", "");
    else if (record.type === "end") {
      const output = collector.finish(record.exec.truncated);
      yield line("result", JSON.stringify(processShape(record.exec, output, workingDir)));
    }
  }
}

/** Maximum length of a line. Longer lines are sent in pieces, because an incomplete line is buffered in memory. */
const LONGEST_LINE = 1_048_576;

/**
 * `text/plain`: complete lines, each prefixed with its stream. The client reads only complete lines. If a part of the
 * output is no longer kept, sends the rest, so that a long-running process can still be followed, and throws at the end.
 */
export async function* logLines(
  execs: ExecApi,
  { id }: Exec,
  onRecord: OnRecord,
  signal: AbortSignal,
): AsyncGenerator<string, void, undefined> {
  const collector = new Collector();
  const tails: Record<OutputStream, string> = { stdout: "", stderr: "" };
  let dropped: HoldfastError | null = null;
  yield "[keepalive]\n";
  for await (const record of records(execs, id, signal)) {
    await onRecord();
    if (record.type === "keepalive") yield "[keepalive]\n";
    if (record.type === "end" && record.exec.truncated) dropped = outputMissing(record.exec);
    if (!("data" in record)) continue;
    const { type } = record;
    const lines = (tails[type] + collector.take(type, record.data)).split("\n");
    tails[type] = lines.pop() ?? "";
    if (tails[type].length > LONGEST_LINE) {
      lines.push(tails[type]);
      tails[type] = "";
    }
    if (lines.length > 0) yield lines.map((text) => `${type}:${text}\n`).join("");
  }
  for (const type of ["stdout", "stderr"] as const) if (tails[type] !== "") yield `${type}:${tails[type]}\n`;
  if (dropped !== null) throw dropped;
}
