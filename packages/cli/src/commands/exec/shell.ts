import type { Command } from "commander";
import type { Context } from "../context.ts";
import type { DetachKeys } from "../detach-keys.ts";
import { detachOption, type ExecFlags, execOf } from "../options.ts";
import { requireTerminal } from "../terminal.ts";
import { given, variable } from "../values.ts";
import { runHere } from "./exec.ts";
import { orHoldfastFailed } from "./run.ts";

type Options = Pick<ExecFlags, "env" | "cwd" | "user"> & { shell?: string; detachKeys: DetachKeys };

/** Not every image has bash, and a shell that fails to exec is gone: so it is looked for first. */
const BEST_SHELL = ["/bin/sh", "-c", "command -v bash >/dev/null && exec bash -l; exec sh -l"];

export function registerShell(program: Command, context: Context): void {
  detachOption(program.command("shell").summary("open a shell in a sandbox"))
    .argument("<sandbox>", "name or id")
    .option("--shell <path>", "the shell (default: bash where there is one, else sh)")
    .option("-u, --user <user>", "user to run as: a name, or uid[:gid] (default: uid 1000)")
    .option("-w, --cwd <path>", "directory to start in")
    .option(
      "-e, --env <key=value>",
      "environment variable, any number of times; KEY alone passes it on",
      variable,
    )
    .description(
      "Makes our terminal one in the sandbox. It outlives a restart of the server. The detach keys leave the shell running,\n" +
        "and 'attach' comes back to it. Exits with the shell's own code.",
    )
    .addHelpText("after", "\nExamples:\n  holdfast shell box\n  holdfast shell -u root --shell /bin/sh box")
    .action(async (name: string, options: Options) => {
      context.exitCode = await orHoldfastFailed(shell(context, name, options));
    });
}

async function shell(context: Context, name: string, options: Options): Promise<number> {
  requireTerminal("A shell needs a terminal; 'holdfast exec' runs a command without one.");
  const { signal } = context.interruption;
  const box = await context.client().sandboxes.get(name, { signal });
  const argv = options.shell === undefined ? BEST_SHELL : [options.shell];
  const start = given(execOf({ ...options, tty: true }));
  return runHere(context, box, argv, { start, stdin: true, detachKeys: options.detachKeys });
}
