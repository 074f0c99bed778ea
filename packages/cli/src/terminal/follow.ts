import type { Exec, ExecRun } from "@holdfast/sdk";
import type { DetachKeys } from "./detach-keys.ts";
import { EXIT, Failure } from "./failure.ts";
import { exitCodeOf } from "./interrupt.ts";
import { pipeOutput, pumpStdin } from "./pipe.ts";
import { ConnectionNotice, converse } from "./session.ts";
import { printable } from "./table.ts";

export interface Following {
  /** Whether our stdin goes to the command. */
  input: boolean;
  /** For an exec with a terminal: what leaves it running. */
  detachKeys: DetachKeys;
  /** Where to go on, for an exec of which something was shown already. */
  cursor?: string | undefined;
  signal: AbortSignal;
}

/** Shows an exec live, to its end or until the user leaves it running, and says with which code to exit. */
export async function follow(run: ExecRun, options: Following): Promise<number> {
  if (!run.info.tty) await followPipes(run, options);
  else if ((await converse(run, options)) === "detached") {
    process.stderr.write(`\r\nholdfast: detached; 'holdfast attach ${run.id}' comes back\n`);
    return 0;
  }
  return outcome(run.info);
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

/** As a shell would have it: the command's own code, 128 and the signal's number, 124 for a timeout. */
export function outcome(exec: Exec): number {
  switch (exec.status) {
    case "exited":
      // Who killed it is nothing that the command could say itself.
      if (exec.signal && exec.cause) process.stderr.write(`holdfast: ${printable(exec.cause.message)}\n`);
      return exec.exitCode ?? exitCodeOf(exec.signal ?? "");
    case "timed_out":
      process.stderr.write(`holdfast: the command was killed after its timeout of ${exec.timeoutMs} ms\n`);
      return EXIT.timedOut;
    case "cancelled":
      process.stderr.write("holdfast: the command was cancelled\n");
      return exitCodeOf("SIGKILL");
    default:
      throw new Failure(
        `the outcome of the command is ${exec.status}: ${exec.cause?.message ?? "no cause is known"}`,
        exec.dispatched === "no" ? "It was not run." : "It may have run.",
        EXIT.holdfastFailed,
      );
  }
}
