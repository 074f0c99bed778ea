import { ConflictError, type ExecRun, HoldfastError } from "@holdfast/sdk";
import type { Context } from "../context.ts";
import { Interrupted } from "../interrupt.ts";
import { printable } from "../output/table.ts";
import { notify } from "./session.ts";

/** After this long without a response, the user learns that SIGINT may not have arrived. */
const LATE_MS = 1_000;

/**
 * Sends the first Ctrl-C to the command, as a terminal does, so that the command can end by itself; the CLI continues
 * to follow the command. The second Ctrl-C interrupts the CLI, which kills the command. When the returned object is
 * disposed, Ctrl-C is no longer sent to the command, and the first one interrupts the CLI.
 */
export function forwardInterrupt({ client, interruption }: Context, run: ExecRun): Disposable {
  const forward = async () => {
    const late = setTimeout(() => {
      if (process.stderr.isTTY) notify("SIGINT is not confirmed yet; press Ctrl-C again to kill the command");
    }, LATE_MS);
    try {
      await run.signal("SIGINT", { signal: interruption.signal });
      if (process.stderr.isTTY) notify("sent SIGINT to the command; press Ctrl-C again to kill it");
    } catch (error) {
      if (interruption.signal.aborted) return;
      if (!(error instanceof ConflictError)) return notify(notSent(error));
      // A conflict means that the command has just ended or is still queued. If it has ended, its output reports the
      // end. If it is queued, the CLI is interrupted, which cancels the command.
      const { info } = await client().execs.get(run.id, { signal: interruption.signal });
      if (info.endedAt === null) interruption.interrupt(new Interrupted("SIGINT"));
    } finally {
      clearTimeout(late);
    }
  };
  interruption.onFirstInterrupt = () => void forward().catch((error) => notify(notSent(error)));
  return {
    [Symbol.dispose]() {
      interruption.onFirstInterrupt = null;
    },
  };
}

const notSent = (error: unknown): string =>
  `SIGINT could not be sent to the command: ${printable(error instanceof HoldfastError ? error.message : String(error))} Press Ctrl-C again to kill it.`;
