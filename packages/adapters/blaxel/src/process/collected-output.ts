import { StringDecoder } from "node:string_decoder";
import type { Exec, OutputStream } from "@holdfast/contract";
import type { ExecApi } from "@holdfast/engine";

/** What a process has written, as text: each stream, and both as they came. */
export interface Output {
  stdout: string;
  stderr: string;
  logs: string;
  /** This is not all of it. */
  truncated: boolean;
}

export const NO_OUTPUT: Output = { stdout: "", stderr: "", logs: "", truncated: false };

/** Of both streams together; a stream of the process has the rest. */
export const MOST_BYTES = 16 * 1_048_576;

/** Characters that were cut by a record's end are put together again, for each stream by itself. */
export class Collector {
  readonly #decoders = { stdout: new StringDecoder("utf8"), stderr: new StringDecoder("utf8") };
  readonly #output: Output = { ...NO_OUTPUT };
  #left: number;

  constructor(mostBytes = MOST_BYTES) {
    this.#left = mostBytes;
  }

  /** The text that this record completes; told in full though it may be too much to keep. */
  take(stream: OutputStream, data: Uint8Array): string {
    const text = this.#decoders[stream].write(Buffer.from(data.buffer, data.byteOffset, data.byteLength));
    this.#left -= data.length;
    if (this.#left < 0) this.#output.truncated = true;
    else this.#keep(stream, text);
    return text;
  }

  /** All of it, with what was cut off at the end; `isPart`: there was more that never came here. */
  finish(isPart: boolean): Output {
    for (const stream of ["stdout", "stderr"] as const) this.#keep(stream, this.#decoders[stream].end());
    return { ...this.#output, truncated: this.#output.truncated || isPart };
  }

  #keep(stream: OutputStream, text: string): void {
    this.#output[stream] += text;
    this.#output.logs += text;
  }
}

/** What is there now. */
export async function outputOf(
  execs: ExecApi,
  id: string,
  signal: AbortSignal,
  mostBytes = MOST_BYTES,
): Promise<Output> {
  const collector = new Collector(mostBytes);
  let isPart = false;
  for await (const record of execs.output(id, { follow: false, signal })) {
    if ("exec" in record) isPart ||= record.exec.truncated;
    else if ("data" in record) collector.take(record.type, record.data);
  }
  return collector.finish(isPart);
}

/** The same of an exec that came with its output; only where both streams have some is their order still to be read. */
export async function outputWith(execs: ExecApi, exec: Exec, signal: AbortSignal): Promise<Output> {
  const { stdout = "", stderr = "" } = exec;
  if (exec.truncated || (stdout !== "" && stderr !== "")) return outputOf(execs, exec.id, signal);
  return { stdout, stderr, logs: stdout + stderr, truncated: false };
}
