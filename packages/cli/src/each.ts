import type { Context } from "./context.ts";
import { report } from "./failure.ts";

const AT_ONCE = 8;

/** Does the same to each, a few at a time. One that fails is told, fails the command, and doesn't keep the others. */
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
        process.stderr.write(text);
        context.exitCode = exitCode;
      }
    }
  };
  await Promise.all(Array.from({ length: AT_ONCE }, worker));
}
