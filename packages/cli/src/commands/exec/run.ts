import type { Sandbox } from "@holdfast/sdk";
import type { Command } from "commander";
import {
  checkTerminal,
  type ExecFlags,
  execOf,
  execOptions,
  resourcesOf,
  type SandboxOptions,
  sandboxOptions,
} from "../../arguments/options.ts";
import { commandOf, given, givenAny } from "../../arguments/values.ts";
import type { Context } from "../../context.ts";
import { EXIT, Failure, OutputFailure, report, usage } from "../../failure.ts";
import { Interrupted } from "../../interrupt.ts";
import { type Progress, withSpinner } from "../../output/spinner.ts";
import { showSteps } from "../../output/steps.ts";
import { printError } from "../../output/streams.ts";
import { followWhole } from "../../terminal/follow.ts";
import { forwardInterrupt } from "../../terminal/forward-interrupt.ts";

type Options = SandboxOptions & ExecFlags & { keep?: boolean };

/** Time that is added to the command's timeout for the sandbox's own work: queueing, launch and delete. */
const TTL_MARGIN_MS = 600_000;

export function registerRun(program: Command, context: Context): void {
  const command = program
    .command("run")
    .summary("run a command in a new sandbox and delete the sandbox afterwards");
  execOptions(sandboxOptions(command))
    .option("--keep", "keep the sandbox afterwards")
    .argument("<command...>", "the command and its arguments")
    .passThroughOptions()
    .description(
      "Creates a sandbox, runs the command in it, streams its output, and deletes the sandbox, even if interrupted.\n\n" +
        "The first Ctrl-C sends SIGINT to the command, the second kills it; SIGTERM and SIGHUP kill it.\n\n" +
        "If this CLI is killed, it cannot delete the sandbox. The server then deletes it when the host runs short of resources " +
        "and the command has ended. With --timeout or --ttl, the server also deletes it when that time has passed.\n\n" +
        "Exits with the command's exit code, with 128+n if signal n ended the command, with 124 on timeout, and with " +
        "125 if Holdfast failed.",
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

/**
 * Returns a special exit code if Holdfast fails, so that the failure can't be mistaken for a failure of the command.
 */
export async function orHoldfastFailed(work: Promise<number>): Promise<number> {
  try {
    return await work;
  } catch (error) {
    if (error instanceof OutputFailure) throw new OutputFailure(error.message, EXIT.holdfastFailed);
    if (error instanceof Failure || error instanceof Interrupted) throw error;
    const { text } = report(error);
    printError(text);
    return EXIT.holdfastFailed;
  }
}

async function runOnce(context: Context, argv: string[], options: Options): Promise<number> {
  if (argv.length === 0) throw usage("no command given", "Put the command after '--'.");
  checkTerminal(options);
  const { signal } = context.interruption;
  // The create request can't be interrupted: the CLI can undo a create reliably only if it got the response.
  const box = await withSpinner("creating a sandbox", (progress) => create(context, options, progress));
  context.interruption.onSecond = ({ exitCode }) => {
    printError(
      `holdfast: exited before sandbox ${box.name} was confirmed deleted; run 'holdfast rm ${box.name}' to be sure\n`,
    );
    process.exit(exitCode);
  };
  try {
    signal.throwIfAborted();
    const start = given(execOf(options));
    const awaitReader = start.tty === undefined;
    const run = await box.execs.start(argv, { ...start, awaitReader, signal });
    using _ = forwardInterrupt(context, run);
    // Detaching is disabled, because the sandbox, and with it the command, is deleted when the CLI ends.
    return await followWhole(run, { input: options.stdin ?? false, detachKeys: [], signal });
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
 * Returns the lifecycle of the sandbox. A sandbox that the user wants to keep has only the TTL that the user set. Any
 * other sandbox is disposable: even if the CLI is killed, the server may delete the sandbox when the host runs short of
 * resources and no exec is running. If its command has a timeout, it also gets a TTL, which is `TTL_MARGIN_MS` longer
 * than the timeout.
 */
function lifecycleOf({ keep, ttl, timeout }: Options) {
  if (keep) return givenAny({ ttlMs: ttl });
  const ttlMs = ttl ?? (timeout === undefined ? undefined : timeout + TTL_MARGIN_MS);
  return { disposable: true, ...given({ ttlMs }) };
}

async function end(box: Sandbox, { keep }: Options): Promise<void> {
  if (keep) printError(`holdfast: sandbox ${box.name} is kept\n`);
  else await withSpinner("deleting the sandbox", () => box.delete());
}
