import type { ExecRun, OutputChunk } from "@holdfast/sdk";
import { NotFoundError } from "@holdfast/sdk";
import { type Command, Option } from "commander";
import type { Context } from "../context.ts";
import { Failure } from "../failure.ts";
import { findSandbox } from "../lookup.ts";
import { pipeOutput } from "../pipe.ts";

interface Options {
  follow?: boolean;
  sinceCursor?: string;
  stream?: "stdout" | "stderr";
}

export function registerLogs(program: Command, context: Context): void {
  program
    .command("logs")
    .summary("show what an exec wrote")
    .argument("<exec>", "id of the exec, or a sandbox for its newest one")
    .option("-f, --follow", "go on until it ends")
    .option("--since-cursor <cursor>", "begin there, not at the beginning")
    .addOption(new Option("--stream <stream>", "only this one").choices(["stdout", "stderr"]))
    .description(
      "Writes the exec's stdout and stderr, byte for byte, to our own. They stay readable for a while after the end, also\n" +
        "when the sandbox was deleted.",
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

/** Exec ids and sandbox names look alike; an id is what this command is mostly given. */
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
    throw new Failure(`sandbox ${box.name} has no execs`, "'holdfast exec' runs one.");
  return context.client().execs.get(newest.id, { signal });
}

/** Says so where output is missing: it must not look as if this was all. */
async function* warned(run: ExecRun, output: AsyncIterable<OutputChunk>): AsyncGenerator<OutputChunk> {
  let isFirst = true;
  for await (const chunk of output) {
    if (chunk.dropped || (isFirst && run.info.truncated)) warn("output before this is no longer kept");
    isFirst = false;
    yield chunk;
  }
}

const warn = (text: string): void => void process.stderr.write(`holdfast: ${text}\n`);
