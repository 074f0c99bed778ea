import { once } from "node:events";
import { createInterface } from "node:readline/promises";

/** Whether the CLI runs on a terminal where it can ask a question. */
export const canAsk = (): boolean => Boolean(process.stdin.isTTY && process.stderr.isTTY);

/** Asks a question on the terminal. Any answer but "y" or "yes" means no, and so does the end of input. */
export async function confirm(question: string, signal: AbortSignal): Promise<boolean> {
  // `terminal: false` leaves line editing to the terminal, so that Ctrl-C still sends a signal.
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
