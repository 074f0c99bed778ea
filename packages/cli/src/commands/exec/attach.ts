import { ConflictError, type ExecRun } from "@holdfast/sdk";
import type { Command } from "commander";
import type { Context } from "../context.ts";
import type { DetachKeys } from "../detach-keys.ts";
import { follow, outcome } from "../follow.ts";
import { detachOption } from "../options.ts";
import { writeTo } from "../pipe.ts";
import { scrollback } from "../scrollback.ts";
import { requireTerminal, terminalSize } from "../terminal.ts";
import { orHoldfastFailed } from "./run.ts";

interface Options {
  stdin: boolean;
  detachKeys: DetachKeys;
}

export function registerAttach(program: Command, context: Context): void {
  detachOption(program.command("attach").summary("come back to a running exec"))
    .argument("<exec>", "id of the exec")
    .option("--no-stdin", "only watch: nothing that is typed goes to the command")
    .description(
      "Shows what an exec wrote and goes on with it, live. A terminal is shown again from its last lines on, and typed into.\n" +
        "Leaving, by the detach keys or an interruption, never ends the command. Exit codes are those of 'run'.",
    )
    .addHelpText(
      "after",
      `
Examples:
  holdfast attach exe_3f9a
  holdfast attach --no-stdin exe_3f9a
  holdfast attach "$(holdfast exec -dt box -- top)"`,
    )
    .action(async (id: string, options: Options) => {
      context.exitCode = await orHoldfastFailed(attach(context, id, options));
    });
}

async function attach(context: Context, id: string, { stdin, detachKeys }: Options): Promise<number> {
  const { signal } = context.interruption;
  const run = await context.client().execs.get(id, { signal });
  if (!run.info.tty) return follow(run, { input: false, detachKeys, signal });
  if (stdin) requireTerminal("--no-stdin only watches.");
  await writeTo("stdout", await scrollback(run, signal), signal);
  if (run.info.endedAt !== null) return outcome(run.info);
  if (stdin) await redraw(run, signal);
  return follow(run, { input: stdin, detachKeys, cursor: run.cursor ?? undefined, signal });
}

/** A program that draws the whole screen does so when its size changes; where ours is the size it has, that takes two steps. */
async function redraw(run: ExecRun, signal: AbortSignal): Promise<void> {
  const size = terminalSize();
  try {
    await run.resize({ ...size, rows: size.rows > 1 ? size.rows - 1 : 2 }, { signal });
    await run.resize(size, { signal });
  } catch (error) {
    // It may end at any moment, which is then told by its output.
    if (!(error instanceof ConflictError)) throw error;
  }
}
