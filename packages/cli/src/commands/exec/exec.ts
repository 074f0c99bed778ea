import type { Sandbox, StartOptions } from "@holdfast/sdk";
import type { Command } from "commander";
import type { Context } from "../context.ts";
import type { DetachKeys } from "../detach-keys.ts";
import { usage } from "../failure.ts";
import { follow } from "../follow.ts";
import { checkTerminal, detachOption, type ExecFlags, execOf, execOptions } from "../options.ts";
import { commandOf, given } from "../values.ts";
import { signalName } from "./execs.ts";
import { orHoldfastFailed } from "./run.ts";

type Options = ExecFlags & {
  detach?: boolean;
  detachKeys: DetachKeys;
  keepAwake: boolean;
  onWake?: string;
};

export function registerExec(program: Command, context: Context): void {
  detachOption(execOptions(program.command("exec").summary("run a command in a sandbox")))
    .option("-d, --detach", "print the exec's id and leave it running")
    .option("--no-keep-awake", "let the sandbox sleep while it runs; it goes on after the wake")
    .option("--on-wake <signal>", "send it this signal after every wake, such as HUP", signalName)
    .argument("<sandbox>", "name or id")
    .argument("<command...>", "the command and its arguments")
    .passThroughOptions()
    .description(
      "Runs a command with its output live. Options come before the sandbox's name. Exit codes are those of 'run'.\n" +
        "An interruption kills the command; with --detach it goes on, and 'logs' and 'attach' show it.",
    )
    .addHelpText(
      "after",
      `
Examples:
  holdfast exec box -- ls -l /tmp
  holdfast exec -u root -w / box -- id
  echo hello | holdfast exec -i box -- cat
  holdfast exec -it box -- python3
  holdfast exec -d box -- sh -c 'sleep 60; echo done'
  holdfast exec -d --no-keep-awake --on-wake HUP box -- ./serve`,
    )
    .action(async (name: string, words: string[], options: Options) => {
      context.exitCode = await orHoldfastFailed(exec(context, name, commandOf(words), options));
    });
}

async function exec(context: Context, name: string, argv: string[], options: Options): Promise<number> {
  if (argv.length === 0) throw usage("there is no command to run", "Put it behind the sandbox's name.");
  if (options.detach && options.stdin && !options.tty) throw usage("--stdin and --detach exclude each other");
  if (!options.detach) checkTerminal(options);
  const { signal } = context.interruption;
  const box = await context.client().sandboxes.get(name, { signal });
  const start: StartOptions = given({ ...execOf(options), ...sleepOf(options) });
  if (!options.detach) return runHere(context, box, argv, { start, ...options });
  const run = await box.execs.start(argv, { ...start, signal });
  process.stdout.write(`${run.id}\n`);
  return 0;
}

/** What becomes of it when its sandbox sleeps; what was not said is left to the server. */
const sleepOf = ({ keepAwake, onWake }: Options) => ({
  keepAwake: keepAwake ? undefined : false,
  onWake: onWake === undefined ? undefined : { signal: onWake },
});

/** Starts a command that belongs to us: it ends with us, unless it is left running on purpose. */
export async function runHere(
  context: Context,
  box: Sandbox,
  argv: string[],
  { start, stdin = false, detachKeys }: { start: StartOptions; stdin?: boolean; detachKeys: DetachKeys },
): Promise<number> {
  const { signal } = context.interruption;
  // Not interruptible: only a start that was answered can be undone for certain.
  const run = await box.execs.start(argv, start);
  try {
    signal.throwIfAborted();
    return await follow(run, { input: stdin, detachKeys, signal });
  } catch (error) {
    if (signal.aborted) await run.cancel();
    throw error;
  }
}
