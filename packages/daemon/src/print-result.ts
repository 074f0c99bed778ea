import type { Writable } from "node:stream";

/**
 * Writes a result as one line of JSON. Resolves once the reader has it, because a later `process.exit` discards what is
 * not written yet: a pipe takes 64 KiB at a time. A reader that has left ends the wait.
 */
export function printResult(result: unknown, to: Writable = process.stdout): Promise<void> {
  return new Promise((resolve) => {
    to.once("error", () => resolve());
    to.write(`${JSON.stringify(result)}\n`, () => resolve());
  });
}
