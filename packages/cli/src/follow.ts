import type { Exec, ExecRun } from "@holdfast/sdk";
import { EXIT, Failure } from "./failure.ts";
import { exitCodeOf } from "./interrupt.ts";
import { pipeOutput, pumpStdin } from "./pipe.ts";

/** Shows an exec live, to its end, and says with which code to exit. */
export async function follow(
  run: ExecRun,
  options: { stdin: boolean; signal: AbortSignal },
): Promise<number> {
  const over = new AbortController();
  const broken = new AbortController();
  const signal = AbortSignal.any([options.signal, broken.signal]);
  if (options.stdin) pumpStdin(run, over.signal).catch((error) => broken.abort(error));
  try {
    await pipeOutput(run.output({ signal }), signal);
  } finally {
    over.abort();
  }
  return outcome(run.info);
}

/** As a shell would have it: the command's own code, 128 and the signal's number, 124 for a timeout. */
export function outcome(exec: Exec): number {
  switch (exec.status) {
    case "exited":
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
