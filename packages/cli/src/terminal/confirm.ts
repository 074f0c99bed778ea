import { once } from "node:events";
import { createInterface } from "node:readline/promises";

/** Whether the CLI runs on a terminal where it can ask a question. */
export const canAsk = (): boolean => Boolean(process.stdin.isTTY && process.stderr.isTTY);

/** Asks a question on the terminal. Only "y" and "yes" mean yes; any other answer, and the end of input, means no. */
export async function confirm(question: string, signal: AbortSignal): Promise<boolean> {
  // With `terminal: false`, the terminal itself does the line editing and turns Ctrl-C into a signal.
  const asked = createInterface({ input: process.stdin, output: process.stderr, terminal: false });
  try {
    const end = once(asked, "close").then(() => "");
    const answer = await Promise.race([asked.question(`${question} [y/N] `, { signal }), end]);
    return /^y(es)?$/i.test(answer.trim());
  } catch (error) {
    signal.throwIfAborted();
    throw error;
  } finally {
    asked.close();
  }
}
