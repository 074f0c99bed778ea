import type { Command } from "commander";
import type { Context } from "../context.ts";
import { usage } from "../failure.ts";
import { follow } from "../follow.ts";
import { type ExecFlags, execOf, execOptions } from "../options.ts";
import { commandOf, given } from "../values.ts";
import { orHoldfastFailed } from "./run.ts";

type Options = ExecFlags & { detach?: boolean };

export function registerExec(program: Command, context: Context): void {
  execOptions(program.command("exec").summary("run a command in a sandbox"))
    .option("-d, --detach", "print the exec's id and leave it running")
    .argument("<sandbox>", "name or id")
    .argument("<command...>", "the command and its arguments")
    .passThroughOptions()
    .description(
      "Runs a command with its output live. Options come before the sandbox's name. Exit codes are those of 'run'.\n" +
        "An interruption kills the command; with --detach it goes on, and 'holdfast logs' shows it.",
    )
    .addHelpText(
      "after",
      `
Examples:
  holdfast exec box -- ls -l /tmp
  holdfast exec --user root --cwd / box -- id
  echo hello | holdfast exec -i box -- cat
  holdfast exec -d box -- sh -c 'sleep 60; echo done'`,
    )
    .action(async (name: string, words: string[], options: Options) => {
      context.exitCode = await orHoldfastFailed(exec(context, name, commandOf(words), options));
    });
}

async function exec(context: Context, name: string, argv: string[], options: Options): Promise<number> {
  if (argv.length === 0) throw usage("there is no command to run", "Put it behind the sandbox's name.");
  if (options.detach && options.stdin) throw usage("--stdin and --detach exclude each other");
  const { signal } = context.interruption;
  const box = await context.client().sandboxes.get(name, { signal });
  const run = await box.execs.start(argv, { ...given(execOf(options)), signal });
  if (options.detach) {
    process.stdout.write(`${run.id}\n`);
    return 0;
  }
  try {
    return await follow(run, { stdin: options.stdin ?? false, signal });
  } catch (error) {
    if (signal.aborted) await run.cancel();
    throw error;
  }
}
