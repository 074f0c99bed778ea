import type { Exec, ExecRun } from "@holdfast/sdk";
import { EXIT, Failure } from "../failure.ts";
import { exitCodeOf } from "../interrupt.ts";
import { printError } from "../output/streams.ts";
import { printable } from "../output/table.ts";
import type { DetachKeys } from "./detach-keys.ts";
import { pipeOutput, pumpStdin } from "./pipe.ts";
import { ConnectionNotice, converse } from "./session.ts";

interface Following {
  /** Whether stdin is sent to the command. */
  input: boolean;
  /** The keys that detach from an exec with a terminal. */
  detachKeys: DetachKeys;
  /** Where to resume, if part of the output was already shown. */
  cursor?: string | undefined;
  signal: AbortSignal;
}

/** Follows an exec until it ends or the user detaches, and returns the exit code. */
export async function follow(run: ExecRun, options: Following): Promise<number> {
  if (!run.info.tty) await followPipes(run, options);
  else if ((await converse(run, options)) === "detached") {
    printError(`\r\nholdfast: detached; 'holdfast attach ${run.id}' attaches again\n`);
    return 0;
  }
  return outcome(run.info);
}

/**
 * Follows a command that this CLI started. Throws if part of the output is missing, because the command's own exit code
 * would not show that. The output of a terminal may have gaps, because a terminal shows the newest output.
 */
export async function followWhole(run: ExecRun, options: Following): Promise<number> {
  const exitCode = await follow(run, options);
  if (run.info.tty || !run.info.truncated) return exitCode;
  const hint = `The command ended with exit code ${exitCode}.`;
  throw new Failure("part of the command's output is missing", hint, EXIT.holdfastFailed);
}

async function followPipes(run: ExecRun, options: Following): Promise<void> {
  const over = new AbortController();
  const broken = new AbortController();
  const signal = AbortSignal.any([options.signal, broken.signal]);
  using notice = process.stderr.isTTY ? new ConnectionNotice() : null;
  if (options.input) pumpStdin(run, over.signal).catch((error) => broken.abort(error));
  try {
    await pipeOutput(run.output({ onConnection: notice?.onConnection, signal }), signal);
  } finally {
    over.abort();
  }
}

/** The exit code by shell conventions: the command's own code, 128 plus the signal's number, or 124 for a timeout. */
export function outcome(exec: Exec): number {
  switch (exec.status) {
    case "exited":
      // A command that was killed by a signal can't report the reason itself, so the CLI prints it.
      if (exec.signal && exec.cause) printError(`holdfast: ${printable(exec.cause.message)}\n`);
      return exec.exitCode ?? exitCodeOf(exec.signal ?? "");
    case "timed_out":
      printError(`holdfast: the command was killed after its timeout of ${exec.timeoutMs} ms\n`);
      return EXIT.timedOut;
    case "cancelled":
      printError("holdfast: the command was cancelled\n");
      return exitCodeOf("SIGKILL");
    default:
      throw new Failure(
        `the outcome of the command is ${exec.status}: ${exec.cause?.message ?? "unknown cause"}`,
        exec.dispatched === "no" ? "The command was not run." : "The command may have run.",
        EXIT.holdfastFailed,
      );
  }
}
