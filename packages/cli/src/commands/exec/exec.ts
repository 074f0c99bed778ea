import type { Sandbox, StartOptions } from "@holdfast/sdk";
import type { Command } from "commander";
import { checkTerminal, detachOption, type ExecFlags, execOf, execOptions } from "../../arguments/options.ts";
import { commandOf, given } from "../../arguments/values.ts";
import type { Context } from "../../context.ts";
import { usage } from "../../failure.ts";
import { Interrupted } from "../../interrupt.ts";
import { print, printError } from "../../output/streams.ts";
import type { DetachKeys } from "../../terminal/detach-keys.ts";
import { followWhole } from "../../terminal/follow.ts";
import { forwardInterrupt } from "../../terminal/forward-interrupt.ts";
import { notify } from "../../terminal/session.ts";
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
    .option("-d, --detach", "print the exec's id and leave the command running")
    .option(
      "--no-keep-awake",
      "let the sandbox go to standby while the command runs; the command continues after the wake",
    )
    .option("--on-wake <signal>", "send the command this signal after every wake, such as HUP", signalName)
    .argument("<sandbox>", "name or id")
    .argument("<command...>", "the command and its arguments")
    .passThroughOptions()
    .description(
      "Runs a command and streams its output. Options come before the sandbox's name. Exit codes are those of 'run'.\n\n" +
        "The first Ctrl-C sends SIGINT to the command, the second kills it; SIGTERM and SIGHUP kill it. With --detach the command " +
        "keeps running, and 'logs' and 'attach' show its output.",
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
  if (argv.length === 0) throw usage("no command given", "Put the command after the sandbox's name.");
  if (options.detach && options.stdin && !options.tty) throw usage("--stdin and --detach cannot be combined");
  if (!options.detach) checkTerminal(options);
  const { signal } = context.interruption;
  const box = await context.client().sandboxes.get(name, { signal });
  const start: StartOptions = given({ ...execOf(options), ...sleepOf(options) });
  if (!options.detach) return runHere(context, box, argv, { start, ...options });
  const run = await box.execs.start(argv, { ...start, signal });
  print(`${run.id}\n`);
  return 0;
}

/** How the exec behaves in standby. Fields that are undefined have the server's defaults. */
const sleepOf = ({ keepAwake, onWake }: Options) => ({
  keepAwake: keepAwake ? undefined : false,
  onWake: onWake === undefined ? undefined : { signal: onWake },
});

/**
 * Runs a command. The first Ctrl-C interrupts the command, and the second one the CLI. An interrupted CLI kills the
 * command, unless the user has detached from it.
 */
export async function runHere(
  context: Context,
  box: Sandbox,
  argv: string[],
  { start, stdin = false, detachKeys }: { start: StartOptions; stdin?: boolean; detachKeys: DetachKeys },
): Promise<number> {
  const { signal } = context.interruption;
  // Ctrl-C does not interrupt the start, because only a start whose response arrived can be undone reliably.
  const run = await box.execs.start(argv, { ...start, awaitReader: start.tty === undefined });
  context.interruption.onSecond = ({ exitCode }) => {
    printError(
      `holdfast: exited before the command was confirmed killed; run 'holdfast kill ${run.id}' to be sure\n`,
    );
    process.exit(exitCode);
  };
  using _ = forwardInterrupt(context, run);
  try {
    signal.throwIfAborted();
    return await followWhole(run, { input: stdin, detachKeys, signal });
  } catch (error) {
    if (signal.aborted) {
      const isTyped = signal.reason instanceof Interrupted && signal.reason.signal === "SIGINT";
      if (isTyped && process.stderr.isTTY) notify("killing the command; press Ctrl-C again to leave it");
      await run.cancel();
    }
    throw error;
  }
}
