import { Holdfast } from "@holdfast/sdk";
import type { Context } from "./context.ts";
import { report } from "./failure.ts";
import { watchSignals } from "./interrupt.ts";
import { watchBrokenPipes } from "./pipe.ts";
import { programOf } from "./program.ts";

/** Runs one command line and exits with its code. */
async function main(): Promise<void> {
  const interruption = watchSignals();
  watchBrokenPipes(interruption.interrupt);
  let client: Holdfast | undefined;
  const context: Context = {
    client: () => {
      client ??= new Holdfast();
      return client;
    },
    interruption,
    exitCode: 0,
  };
  try {
    await programOf(context).parseAsync();
  } catch (error) {
    const { text, exitCode } = report(error);
    process.stderr.write(text);
    context.exitCode = exitCode;
  }
  // Not left to the event loop: an open stdin would keep it turning.
  process.exit(context.exitCode);
}

await main();
