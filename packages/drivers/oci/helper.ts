import { spawn } from "node:child_process";
import { errnoOf } from "./errno.ts";

export interface HelperOrder {
  argv: readonly string[];
  env: Record<string, string>;
  /** A descriptor for stdin, stdout and stderr alike. */
  stdio: number | "ignore";
  /** Is given what the helper says on stderr. Only for one that leaves nothing running: its silence is waited for. */
  hear?: (text: string) => void;
}

const KILL_WAIT_MS = 2_000;

/**
 * Runs a helper in a process session of its own and gives its exit code. When the signal is aborted the whole session is
 * killed, and the promise rejects only once the helper is gone. What has left the session by then goes on.
 */
export async function runHelper(order: HelperOrder, signal: AbortSignal): Promise<number> {
  signal.throwIfAborted();
  const { promise, resolve, reject } = Promise.withResolvers<number>();
  const [file = "", ...args] = order.argv;
  const { stdio, env, hear } = order;
  const stderr = hear === undefined ? stdio : "pipe";
  const child = spawn(file, args, { stdio: [stdio, stdio, stderr], env, detached: true });
  if (hear !== undefined) child.stderr?.setEncoding("utf8").on("data", hear);
  let giveUp: NodeJS.Timeout | undefined;
  const abort = () => {
    killSession(child.pid);
    giveUp = setTimeout(() => reject(signal.reason), KILL_WAIT_MS);
  };
  const settle = (end: () => void) => {
    signal.removeEventListener("abort", abort);
    clearTimeout(giveUp);
    end();
  };
  signal.addEventListener("abort", abort, { once: true });
  child.once("error", (error) => settle(() => reject(error)));
  const over = hear === undefined ? "exit" : "close";
  child.once(over, (code: number | null) =>
    settle(() => (signal.aborted ? reject(signal.reason) : resolve(code ?? -1))),
  );
  return promise;
}

/** A process with all that it has started, as far as that stayed in its session. */
export function killSession(pid: number | undefined): void {
  if (pid === undefined) return;
  try {
    process.kill(-pid, "SIGKILL");
  } catch (error) {
    if (errnoOf(error) !== "ESRCH") throw error;
  }
}
