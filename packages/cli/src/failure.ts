import { ExecUnfinishedError, HoldfastError, OutputDroppedError } from "@holdfast/sdk";
import { CommanderError } from "commander";
import { hintFor, messageOf } from "./failure-words.ts";
import { Interrupted } from "./interrupt.ts";
import { printable } from "./output/table.ts";

export const EXIT = { failed: 1, usage: 2, timedOut: 124, holdfastFailed: 125 } as const;

/** A failure detected by the CLI itself, with a hint for the user. */
export class Failure extends Error {
  readonly hint: string;
  readonly exitCode: number;
  constructor(message: string, hint = "", exitCode: number = EXIT.failed) {
    super(message);
    this.name = "Failure";
    this.hint = hint;
    this.exitCode = exitCode;
  }
}

/** The failure that stdout or stderr cannot be written, for example because the disk is full. */
export class OutputFailure extends Failure {
  constructor(message: string, exitCode: number = EXIT.failed) {
    super(message, "The output is incomplete.", exitCode);
    this.name = "OutputFailure";
  }
}

export const usage = (message: string, hint = ""): Failure => new Failure(message, hint, EXIT.usage);

/** Converts any thrown value to the message and hint for the user, and to an exit code. */
export function report(error: unknown): { text: string; exitCode: number } {
  if (error instanceof CommanderError) {
    return { text: "", exitCode: error.exitCode === 0 ? 0 : EXIT.usage };
  }
  if (error instanceof Interrupted) return { text: "", exitCode: error.exitCode };
  const message =
    error instanceof HoldfastError
      ? messageOf(error)
      : error instanceof Error
        ? error.message
        : String(error);
  const hint = hintOf(error);
  const cause = error instanceof HoldfastError ? causeOf(error) : "";
  const lines = [`holdfast: ${message}${cause}`, hint].filter((line) => line !== "");
  return {
    text: lines.map((line) => `${printable(line)}\n`).join(""),
    exitCode: error instanceof Failure ? error.exitCode : EXIT.failed,
  };
}

/** Returns the hint for an error, phrased as a CLI command if possible. */
function hintOf(error: unknown): string {
  if (error instanceof ExecUnfinishedError) return `To keep following it: holdfast attach ${error.execId}`;
  if (error instanceof OutputDroppedError && error.floor !== null && error.execId !== undefined) {
    return `To see the remaining output: holdfast logs -f --since-cursor ${error.floor} ${error.execId}`;
  }
  if (error instanceof HoldfastError && error.code === "pending_cleanup" && error.sandboxId !== undefined) {
    return `'holdfast audit' shows the progress; 'holdfast rm ${error.sandboxId}' removes the sandbox now.`;
  }
  if (error instanceof HoldfastError && error.code === "wrong_state" && / is paused\b/.test(error.message))
    return `Run 'holdfast resume ${error.sandboxId ?? "SANDBOX"}'.`;
  if (error instanceof HoldfastError) return hintFor(error);
  return error instanceof Failure ? error.hint : "";
}

/** Returns the cause that the server reported, unless the message already contains it. */
function causeOf(error: HoldfastError): string {
  const message = (error.cause as { message?: unknown } | null | undefined)?.message;
  return error.status > 0 && typeof message === "string" && !error.message.includes(message)
    ? ` (${message})`
    : "";
}
