import type { Writable } from "node:stream";

/**
 * Writes a result as one line of JSON. Resolves when the whole line was written, or when the reader has closed the
 * pipe. Callers wait for that before `process.exit`, which would discard the rest of a line that does not fit into the
 * pipe's 64 KiB buffer.
 */
export function printResult(result: unknown, to: Writable = process.stdout): Promise<void> {
  return new Promise((resolve) => {
    to.once("error", () => resolve());
    to.write(`${JSON.stringify(result)}\n`, () => resolve());
  });
}
