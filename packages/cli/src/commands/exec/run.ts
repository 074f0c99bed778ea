import type { Sandbox } from "@holdfast/sdk";
import type { Command } from "commander";
import type { Context } from "../context.ts";
import { EXIT, Failure, report, usage } from "../failure.ts";
import { follow } from "../follow.ts";
import { Interrupted } from "../interrupt.ts";
import {
  checkTerminal,
  type ExecFlags,
  execOf,
  execOptions,
  resourcesOf,
  type SandboxOptions,
  sandboxOptions,
} from "../options.ts";
import { type Progress, withSpinner } from "../spinner.ts";
import { showSteps } from "../steps.ts";
import { commandOf, given, givenAny } from "../values.ts";

type Options = SandboxOptions & ExecFlags & { keep?: boolean };

/** What a sandbox may need beyond its command's timeout: a turn in line, the launch, and the delete. */
const TTL_MARGIN_MS = 600_000;

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
        "Should it be killed itself, the server may delete the sandbox: when the host runs short and the command has ended,\n" +
        "or, with --timeout or --ttl, when it is past its time.\n" +
        "Exits with the command's own code; 128+n if signal n ended it, 124 at its timeout, 125 if Holdfast failed.",
    )
    .addHelpText(
      "after",
      `
Examples:
  holdfast run -- sh -c 'echo hi; exit 3'
  holdfast run --memory 256m --timeout 30s -- python3 -c 'print(6*7)'
  holdfast run --mount data:/workspace -- ls /workspace
  holdfast run -it -- bash
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
  checkTerminal(options);
  const { signal } = context.interruption;
  // Not interruptible: only a create that was answered can be undone for certain.
  const box = await withSpinner("creating a sandbox", (progress) => create(context, options, progress));
  context.interruption.onSecond = ({ exitCode }) => {
    process.stderr.write(
      `holdfast: left before sandbox ${box.name} was seen gone; 'holdfast rm ${box.name}' makes sure\n`,
    );
    process.exit(exitCode);
  };
  try {
    signal.throwIfAborted();
    const run = await box.execs.start(argv, { ...given(execOf(options)), signal });
    // Nothing to detach from: what runs here ends with its sandbox.
    return await follow(run, { input: options.stdin ?? false, detachKeys: [], signal });
  } finally {
    await end(box, options);
  }
}

function create(context: Context, options: Options, progress: Progress): Promise<Sandbox> {
  const { image, label: labels, mount: mounts } = options;
  return context.client().sandboxes.create({
    ...given({ image, labels, mounts, resources: resourcesOf(options), lifecycle: lifecycleOf(options) }),
    onProgress: showSteps("creating a sandbox", progress),
  });
}

/**
 * Whoever is killed deletes nothing. So the server may: when the host runs short, once no command is under way; and, where
 * it is known how long the command may take, when that is long over. One that is to be kept has only the limit it was given.
 */
function lifecycleOf({ keep, ttl, timeout }: Options) {
  if (keep) return givenAny({ ttlMs: ttl });
  const ttlMs = ttl ?? (timeout === undefined ? undefined : timeout + TTL_MARGIN_MS);
  return { disposable: true, ...given({ ttlMs }) };
}

async function end(box: Sandbox, { keep }: Options): Promise<void> {
  if (keep) process.stderr.write(`holdfast: kept sandbox ${box.name}\n`);
  else await withSpinner("deleting the sandbox", () => box.delete());
}
