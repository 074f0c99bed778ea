import type { Command } from "commander";
import { detachOption, type ExecFlags, execOf } from "../../arguments/options.ts";
import { given, variable } from "../../arguments/values.ts";
import type { Context } from "../../context.ts";
import type { DetachKeys } from "../../terminal/detach-keys.ts";
import { requireTerminal } from "../../terminal/terminal.ts";
import { runHere } from "./exec.ts";
import { orHoldfastFailed } from "./run.ts";

type Options = Pick<ExecFlags, "env" | "cwd" | "user"> & { shell?: string; detachKeys: DetachKeys };

/**
 * Starts bash if the image has it, and sh otherwise. The script looks bash up before `exec`, because a failed `exec`
 * would end the shell.
 */
const BEST_SHELL = ["/bin/sh", "-c", "command -v bash >/dev/null && exec bash -l; exec sh -l"];

export function registerShell(program: Command, context: Context): void {
  detachOption(program.command("shell").summary("open a shell in a sandbox"))
    .argument("<sandbox>", "name or id")
    .option("--shell <path>", "shell to run (default: bash if available, else sh)")
    .option("-u, --user <user>", "user to run as: a name, or uid[:gid] (default: uid 1000)")
    .option("-w, --cwd <path>", "directory to start in")
    .option(
      "-e, --env <key=value>",
      "environment variable; KEY alone copies the local value; repeatable",
      variable,
    )
    .description(
      "Opens an interactive shell on your terminal. The session survives a restart of the server. The detach keys leave the " +
        "shell running, and 'attach' returns to it. Exits with the shell's exit code.",
    )
    .addHelpText("after", "\nExamples:\n  holdfast shell box\n  holdfast shell -u root --shell /bin/sh box")
    .action(async (name: string, options: Options) => {
      context.exitCode = await orHoldfastFailed(shell(context, name, options));
    });
}

async function shell(context: Context, name: string, options: Options): Promise<number> {
  requireTerminal("A shell needs a terminal. Use 'holdfast exec' to run a command without one.");
  const { signal } = context.interruption;
  const box = await context.client().sandboxes.get(name, { signal });
  const argv = options.shell === undefined ? BEST_SHELL : [options.shell];
  const start = given(execOf({ ...options, tty: true }));
  return runHere(context, box, argv, { start, stdin: true, detachKeys: options.detachKeys });
}
