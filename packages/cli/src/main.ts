import { Holdfast } from "@holdfast/sdk";
import type { Context } from "./context.ts";
import { OutputFailure, report } from "./failure.ts";
import { watchSignals } from "./interrupt.ts";
import { flushed, printError, watchOutput } from "./output/streams.ts";
import { programOf } from "./program.ts";

/** Runs one command line and exits with its code, once all output is written. */
async function main(): Promise<void> {
  const interruption = watchSignals();
  watchOutput(interruption.interrupt);
  let client: Holdfast | undefined;
  const context: Context = {
    client: () => {
      client ??= new Holdfast();
      return client;
    },
    interruption,
    exitCode: 0,
  };
  let isCut = false;
  const orReported = async (work: Promise<unknown>) => {
    try {
      await work;
    } catch (error) {
      // The error has already been reported while the command ran; `flushed` throws it a second time.
      if (isCut && error instanceof OutputFailure) return;
      isCut = error instanceof OutputFailure;
      const { text, exitCode } = report(error);
      printError(text);
      context.exitCode = exitCode;
    }
  };
  await orReported(programOf(context).parseAsync());
  await orReported(flushed(interruption.signal));
  // Exit explicitly: an open stdin would keep the event loop alive.
  process.exit(context.exitCode);
}

await main();
