import type { ExecRun, OutputChunk } from "@holdfast/sdk";
import { NotFoundError } from "@holdfast/sdk";
import { type Command, Option } from "commander";
import type { Context } from "../../context.ts";
import { Failure } from "../../failure.ts";
import { findSandbox } from "../../lookup.ts";
import { printError } from "../../output/streams.ts";
import { pipeOutput } from "../../terminal/pipe.ts";

interface Options {
  follow?: boolean;
  sinceCursor?: string;
  stream?: "stdout" | "stderr";
}

export function registerLogs(program: Command, context: Context): void {
  program
    .command("logs")
    .summary("show the output of an exec")
    .argument("<exec>", "exec id, or a sandbox for its newest exec")
    .option("-f, --follow", "follow the output until the exec ends")
    .option("--since-cursor <cursor>", "start at this cursor instead of the beginning")
    .addOption(new Option("--stream <stream>", "only this stream").choices(["stdout", "stderr"]))
    .description(
      "Copies the exec's stdout and stderr, byte for byte, to stdout and stderr. Output stays readable for a while after the " +
        "exec ends, even if the sandbox is deleted.",
    )
    .addHelpText(
      "after",
      `
Examples:
  holdfast logs exe_3f9a
  holdfast logs -f box
  holdfast logs -f "$(holdfast exec -d box -- make)"`,
    )
    .action(async (ref: string, options: Options) => {
      const { signal } = context.interruption;
      const run = await find(context, ref);
      const output = run.output({
        cursor: options.sinceCursor,
        follow: options.follow ?? false,
        stream: options.stream,
        onDropped: "skip",
        signal,
      });
      await pipeOutput(warned(run, output), signal);
    });
}

/**
 * Finds the exec that an argument names. An exec id can look like a sandbox name. The argument is usually an exec id,
 * so execs are searched first.
 */
async function find(context: Context, ref: string): Promise<ExecRun> {
  const { signal } = context.interruption;
  try {
    return await context.client().execs.get(ref, { signal });
  } catch (error) {
    if (!(error instanceof NotFoundError) || ref.startsWith("exe_")) throw error;
  }
  const box = await findSandbox(context, ref);
  const [newest] = (await box.execs.list({ limit: 1, signal })).items;
  if (newest === undefined)
    throw new Failure(`sandbox ${box.name} has no execs`, "Run one with 'holdfast exec'.");
  return context.client().execs.get(newest.id, { signal });
}

/** Warns where earlier output is missing, so that the output never looks complete when it is not. */
async function* warned(run: ExecRun, output: AsyncIterable<OutputChunk>): AsyncGenerator<OutputChunk> {
  let isFirst = true;
  for await (const chunk of output) {
    if (chunk.dropped || (isFirst && run.info.truncated)) warn("earlier output is no longer available");
    isFirst = false;
    yield chunk;
  }
}

const warn = (text: string): void => printError(`holdfast: ${text}\n`);
