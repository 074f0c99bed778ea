import { StringDecoder } from "node:string_decoder";
import type { Exec, OutputStream } from "@holdfast/contract";
import type { ExecApi } from "@holdfast/engine";

/** The output of a process as text: stdout, stderr, and both interleaved (`logs`). */
export interface Output {
  stdout: string;
  stderr: string;
  logs: string;
  /** Whether output is missing. */
  truncated: boolean;
}

export const NO_OUTPUT: Output = { stdout: "", stderr: "", logs: "", truncated: false };

/**
 * Maximum size of collected stdout and stderr together. Longer output is available from the process's output stream.
 */
export const MOST_BYTES = 16 * 1_048_576;

/** Decodes text across record boundaries, separately for each stream. */
export class Collector {
  readonly #decoders = { stdout: new StringDecoder("utf8"), stderr: new StringDecoder("utf8") };
  readonly #output: Output = { ...NO_OUTPUT };
  #left: number;

  constructor(mostBytes = MOST_BYTES) {
    this.#left = mostBytes;
  }

  /**
   * Decodes a record, adds its text to the collected output, and returns the text. An incomplete last character is
   * returned with the next record. Text that exceeds the limit is returned, but not collected.
   */
  take(stream: OutputStream, data: Uint8Array): string {
    const text = this.#decoders[stream].write(Buffer.from(data.buffer, data.byteOffset, data.byteLength));
    this.#left -= data.length;
    if (this.#left < 0) this.#output.truncated = true;
    else this.#keep(stream, text);
    return text;
  }

  /**
   * Returns all collected text, including an incomplete last character. `isPart`: whether the process has more output
   * than was collected.
   */
  finish(isPart: boolean): Output {
    for (const stream of ["stdout", "stderr"] as const) this.#keep(stream, this.#decoders[stream].end());
    return { ...this.#output, truncated: this.#output.truncated || isPart };
  }

  #keep(stream: OutputStream, text: string): void {
    this.#output[stream] += text;
    this.#output.logs += text;
  }
}

/** Reads the current output. */
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

/**
 * Returns the output of an exec. It is read from the journal if the output in the exec's record is truncated. It is
 * also read from the journal if both stdout and stderr have output, because the record does not show their order.
 * Otherwise the output in the record is complete.
 */
export async function outputWith(execs: ExecApi, exec: Exec, signal: AbortSignal): Promise<Output> {
  const { stdout = "", stderr = "" } = exec;
  if (exec.truncated || (stdout !== "" && stderr !== "")) return outputOf(execs, exec.id, signal);
  return { stdout, stderr, logs: stdout + stderr, truncated: false };
}
