/** A process's output in the two forms that the client follows it in. */
import type { Exec, OutputStream } from "@holdfast/contract";
import type { ExecApi } from "@holdfast/engine";
import { records } from "../exec-records.ts";
import { Collector } from "./collected-output.ts";
import { processShape } from "./shapes.ts";

/** Called with every record: following what runs is use of its sandbox. */
type OnRecord = () => Promise<void> | void;

const line = (type: string, data: string) => `${JSON.stringify({ type, data })}\n`;

/** What its last line repeats of what was streamed: the client's work on a line grows with the square of its length. */
const RESULT_MOST_BYTES = 2 * 1_048_576;

/** `application/x-ndjson`: pieces as they come, and at last the process, as a text within its line. */
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

/** A longer line is sent in pieces: what waits for its end waits in memory. */
const LONGEST_LINE = 1_048_576;

/** `text/plain`: whole lines, each with the name of its stream. The client reads nothing but whole lines. */
export async function* logLines(
  execs: ExecApi,
  { id }: Exec,
  onRecord: OnRecord,
  signal: AbortSignal,
): AsyncGenerator<string, void, undefined> {
  const collector = new Collector();
  const tails: Record<OutputStream, string> = { stdout: "", stderr: "" };
  yield "[keepalive]\n";
  for await (const record of records(execs, id, signal)) {
    await onRecord();
    if (record.type === "keepalive") yield "[keepalive]\n";
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
}
