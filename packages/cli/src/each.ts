import type { Context } from "./context.ts";
import { report } from "./failure.ts";
import { printError } from "./output/streams.ts";

const CONCURRENCY = 8;

/**
 * Runs `work` for every name, a few at a time. If it fails for one name, reports the error, sets the exit code, and
 * continues with the others.
 */
export async function forEachOf(
  context: Context,
  names: readonly string[],
  work: (name: string) => Promise<void>,
): Promise<void> {
  const waiting = [...names];
  const worker = async () => {
    for (let name = waiting.shift(); name !== undefined; name = waiting.shift()) {
      try {
        await work(name);
      } catch (error) {
        context.interruption.signal.throwIfAborted();
        const { text, exitCode } = report(error);
        printError(text);
        context.exitCode = exitCode;
      }
    }
  };
  await Promise.all(Array.from({ length: CONCURRENCY }, worker));
}
