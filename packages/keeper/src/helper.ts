import { type ChildProcess, spawn } from "node:child_process";

const STDERR_LIMIT = 4_096;
/** More than the names of what CRIU writes for any number of processes that a sandbox may have. */
const OUTPUT_LIMIT = 16 * 1_048_576;
/** What a helper wrote is read on for so long after its exit: a child of its own may hold the pipe open. */
const DRAIN_MS = 100;

/** A helper that failed, in its own words. */
export class PorterError extends Error {
  readonly exitCode: number | null;
  constructor(what: string, exitCode: number | null) {
    super(what);
    this.name = "PorterError";
    this.exitCode = exitCode;
  }
}

/** The first few lines of a child's stderr, as one. */
export function complaints(child: ChildProcess): () => string {
  let text = "";
  child.stderr?.setEncoding("utf8").on("data", (chunk: string) => {
    if (text.length < STDERR_LIMIT) text = (text + chunk).slice(0, STDERR_LIMIT);
  });
  return () => text.trim().replaceAll(/\s*\n\s*/g, "; ");
}

/**
 * Runs a helper to its end and gives its exit code. One that is not done in time is killed, and the call fails at once,
 * even where the kernel holds on to the process.
 */
export function runHelper(
  argv: readonly [string, ...string[]],
  deadlineMs: number,
  stdout: "ignore" | "pipe" = "ignore",
): Promise<{
  code: number;
  complaint: string;
  output: string;
}> {
  return new Promise((resolve, reject) => {
    const [file, ...args] = argv;
    const what = `porter ${args[0]}`;
    const child = spawn(file, args, { stdio: ["ignore", stdout, "pipe"], env: {} });
    const complaint = complaints(child);
    let output = "";
    child.stdout?.setEncoding("utf8").on("data", (chunk: string) => {
      if (output.length < OUTPUT_LIMIT) output += chunk;
    });
    const deadline = setTimeout(() => {
      child.kill("SIGKILL");
      child.stdout?.destroy();
      child.stderr?.destroy();
      reject(new PorterError(`${what} did not end within ${deadlineMs / 1000} s`, null));
    }, deadlineMs);
    child.once("error", (error) => {
      clearTimeout(deadline);
      reject(new PorterError(`${what} can't be run: ${error.message}`, null));
    });
    child.once("exit", (code, signal) => {
      clearTimeout(deadline);
      // What it was run to say is waited for; of complaints, the first will do.
      const drained = setTimeout(() => stdout === "pipe" || child.stderr?.destroy(), DRAIN_MS);
      child.once("close", () => {
        clearTimeout(drained);
        if (code === null) reject(new PorterError(`${what} ended by ${signal}`, null));
        else resolve({ code, complaint: complaint(), output });
      });
    });
  });
}
