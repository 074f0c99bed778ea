import { once } from "node:events";
import { createInterface } from "node:readline/promises";

/** Whether there is someone to ask. */
export const canAsk = (): boolean => Boolean(process.stdin.isTTY && process.stderr.isTTY);

/** Asks on the terminal; anything but a yes is a no, the end of input too. */
export async function confirm(question: string, signal: AbortSignal): Promise<boolean> {
  // Lines are the terminal's to edit, so that Ctrl-C stays a signal.
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
