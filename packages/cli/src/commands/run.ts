import type { Sandbox } from "@holdfast/sdk";
import type { Command } from "commander";
import type { Context } from "../context.ts";
import { EXIT, Failure, report, usage } from "../failure.ts";
import { follow } from "../follow.ts";
import { Interrupted } from "../interrupt.ts";
import {
  type ExecFlags,
  execOf,
  execOptions,
  resourcesOf,
  type SandboxOptions,
  sandboxOptions,
} from "../options.ts";
import { withSpinner } from "../spinner.ts";
import { commandOf, given } from "../values.ts";

type Options = SandboxOptions & ExecFlags & { keep?: boolean };

export function registerRun(program: Command, context: Context): void {
  const command = program
    .command("run")
    .summary("run a command in a sandbox of its own, leaving nothing behind");
  execOptions(sandboxOptions(command))
    .option("--keep", "leave the sandbox there afterwards")
    .argument("<command...>", "the command and its arguments")
    .passThroughOptions()
    .description(
      "Creates a sandbox, runs the command in it with its output live, and deletes the sandbox, also when interrupted.\n" +
        "Exits with the command's own code; 128+n if signal n ended it, 124 at its timeout, 125 if Holdfast failed.",
    )
    .addHelpText(
      "after",
      `
Examples:
  holdfast run -- sh -c 'echo hi; exit 3'
  holdfast run --memory 256m --timeout 30s -- python3 -c 'print(6*7)'
  tar c . | holdfast run -i -- tar t`,
    )
    .action(async (words: string[], options: Options) => {
      context.exitCode = await orHoldfastFailed(runOnce(context, commandOf(words), options));
    });
}

/** A failure of Holdfast must not look like one of the command. */
export async function orHoldfastFailed(work: Promise<number>): Promise<number> {
  try {
    return await work;
  } catch (error) {
    if (error instanceof Failure || error instanceof Interrupted) throw error;
    const { text } = report(error);
    process.stderr.write(text);
    return EXIT.holdfastFailed;
  }
}

async function runOnce(context: Context, argv: string[], options: Options): Promise<number> {
  if (argv.length === 0) throw usage("there is no command to run", "Put it behind '--'.");
  const { signal } = context.interruption;
  // Not interruptible: only a create that was answered can be undone for certain.
  const box = await withSpinner("creating a sandbox", () => create(context, options));
  context.interruption.onSecond = ({ exitCode }) => {
    process.stderr.write(
      `holdfast: left before sandbox ${box.name} was seen gone; 'holdfast rm ${box.name}' makes sure\n`,
    );
    process.exit(exitCode);
  };
  try {
    signal.throwIfAborted();
    const run = await box.execs.start(argv, { ...given(execOf(options)), signal });
    return await follow(run, { stdin: options.stdin ?? false, signal });
  } finally {
    await end(box, options);
  }
}

const create = (context: Context, options: Options): Promise<Sandbox> =>
  context
    .client()
    .sandboxes.create(
      given({ image: options.image, resources: resourcesOf(options), labels: options.label }),
    );

async function end(box: Sandbox, { keep }: Options): Promise<void> {
  if (keep) process.stderr.write(`holdfast: kept sandbox ${box.name}\n`);
  else await withSpinner("deleting the sandbox", () => box.delete());
}
