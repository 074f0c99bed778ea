import type { Command } from "commander";
import type { Context } from "../context.ts";
import { pipeOutput } from "../pipe.ts";

export function registerLogs(program: Command, context: Context): void {
  program
    .command("logs")
    .summary("show what an exec wrote")
    .argument("<exec>", "id of the exec")
    .option("-f, --follow", "go on until it ends")
    .description("Writes the exec's stdout and stderr, byte for byte, to our own.")
    .addHelpText(
      "after",
      `
Examples:
  holdfast logs exe_3f9a
  holdfast logs -f "$(holdfast exec -d box -- make)"`,
    )
    .action(async (id: string, options: { follow?: boolean }) => {
      const { signal } = context.interruption;
      const run = await context.client().execs.get(id, { signal });
      await pipeOutput(run.output({ follow: options.follow ?? false, signal }), signal);
    });
}
