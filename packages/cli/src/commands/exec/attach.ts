import { ConflictError, type ExecRun } from "@holdfast/sdk";
import type { Command } from "commander";
import { detachOption } from "../../arguments/options.ts";
import type { Context } from "../../context.ts";
import { writeTo } from "../../output/streams.ts";
import type { DetachKeys } from "../../terminal/detach-keys.ts";
import { follow, outcome } from "../../terminal/follow.ts";
import { scrollback } from "../../terminal/scrollback.ts";
import { requireTerminal, terminalSize } from "../../terminal/terminal.ts";
import { orHoldfastFailed } from "./run.ts";

interface Options {
  stdin: boolean;
  detachKeys: DetachKeys;
}

export function registerAttach(program: Command, context: Context): void {
  detachOption(program.command("attach").summary("attach to a running exec"))
    .argument("<exec>", "exec id")
    .option("--no-stdin", "only watch; do not send typed input to the command")
    .description(
      "Shows the output of an exec so far and follows it live. For a terminal, shows its last lines and accepts input. " +
        "Detaching, with the detach keys or Ctrl-C, never ends the command. Exit codes are those of 'run'.",
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
  if (stdin) requireTerminal("Use --no-stdin to watch without a terminal.");
  await writeTo("stdout", await scrollback(run, signal), signal);
  if (run.info.endedAt !== null) return outcome(run.info);
  if (stdin) await redraw(run, signal);
  return follow(run, { input: stdin, detachKeys, cursor: run.cursor ?? undefined, signal });
}

/**
 * Makes a full-screen program redraw by changing its terminal's size twice. One change is not enough, because the
 * remote terminal may already have the local size.
 */
async function redraw(run: ExecRun, signal: AbortSignal): Promise<void> {
  const size = terminalSize();
  try {
    await run.resize({ ...size, rows: size.rows > 1 ? size.rows - 1 : 2 }, { signal });
    await run.resize(size, { signal });
  } catch (error) {
    // The resize fails if the command has ended meanwhile. The error is ignored, because the output, which is read
    // next, reports the end of the command.
    if (!(error instanceof ConflictError)) throw error;
  }
}
