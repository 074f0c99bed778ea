import { ExecUnfinishedError, HoldfastError, OutputDroppedError } from "@holdfast/sdk";
import { CommanderError } from "commander";
import { Interrupted } from "./interrupt.ts";
import { printable } from "./table.ts";

export const EXIT = { failed: 1, usage: 2, timedOut: 124, holdfastFailed: 125 } as const;

/** A failure that is the command line's own, with what to do about it. */
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

export const usage = (message: string, hint = ""): Failure => new Failure(message, hint, EXIT.usage);

/** The two lines that a person gets, and the exit code for whatever was thrown. */
export function report(error: unknown): { text: string; exitCode: number } {
  if (error instanceof CommanderError) {
    return { text: "", exitCode: error.exitCode === 0 ? 0 : EXIT.usage };
  }
  if (error instanceof Interrupted) return { text: "", exitCode: error.exitCode };
  const message = error instanceof Error ? error.message : String(error);
  const hint = hintOf(error);
  const cause = error instanceof HoldfastError ? causeOf(error) : "";
  const lines = [`holdfast: ${message}${cause}`, hint].filter((line) => line !== "");
  return {
    text: lines.map((line) => `${printable(line)}\n`).join(""),
    exitCode: error instanceof Failure ? error.exitCode : EXIT.failed,
  };
}

/** What to do next, in words of the command line where there are such. */
function hintOf(error: unknown): string {
  if (error instanceof ExecUnfinishedError) return `'holdfast attach ${error.execId}' goes on with it.`;
  if (error instanceof OutputDroppedError && error.floor !== null && error.execId !== undefined) {
    return `'holdfast logs -f --since-cursor ${error.floor} ${error.execId}' shows what is kept.`;
  }
  if (error instanceof HoldfastError && error.code === "pending_cleanup" && error.sandboxId !== undefined) {
    return `'holdfast audit' shows it; 'holdfast rm ${error.sandboxId}' removes it now.`;
  }
  if (error instanceof HoldfastError) return HINTS.get(error.code) ?? error.hint;
  return error instanceof Failure ? error.hint : "";
}

const HINTS: ReadonlyMap<HoldfastError["code"], string> = new Map([
  [
    "checkpoint_not_found",
    "'holdfast checkpoint ls' lists those of a sandbox. They go when the sandbox is deleted.",
  ],
  [
    "drive_mounted",
    "'holdfast unmount' takes it off a sandbox; 'holdfast drive rm --force' takes it from all.",
  ],
  ["drive_degraded", "'holdfast drive get' says what is missing. Nothing was written elsewhere instead."],
  [
    "preview_not_found",
    "'holdfast preview ls' lists those of a sandbox, 'holdfast preview tokens' their tokens.",
  ],
  ["preview_exists", "'holdfast preview token' makes one more link to it; 'holdfast preview rm' closes it."],
  ["mount_not_found", "'holdfast mounts' lists what is mounted in a sandbox, and where."],
]);

/** What the server says lay beneath, where that adds something. */
function causeOf(error: HoldfastError): string {
  const said = (error.cause as { message?: unknown } | null | undefined)?.message;
  return error.status > 0 && typeof said === "string" && !error.message.includes(said) ? ` (${said})` : "";
}
