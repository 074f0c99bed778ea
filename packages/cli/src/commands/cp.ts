import type { Sandbox } from "@holdfast/sdk";
import type { Command } from "commander";
import type { Context } from "../context.ts";
import { download } from "../download.ts";
import { usage } from "../failure.ts";
import { writeTo } from "../pipe.ts";
import { type Place, parsePlace } from "../place.ts";
import { withSpinner } from "../spinner.ts";
import { Tally } from "../tally.ts";
import { upload } from "../upload.ts";

export function registerCp(program: Command, context: Context): void {
  program
    .command("cp")
    .summary("copy files into and out of a sandbox")
    .argument("<source>", "NAME:/path, a local path, or - for stdin")
    .argument("<target>", "NAME:/path, a local path, or - for stdout")
    .description(
      "Copies a file, or a directory with all that is in it. Into an existing directory it goes under its own name;\n" +
        "'dir/.' means what is in dir. Permissions and links are kept, owners are not.",
    )
    .addHelpText(
      "after",
      `
Examples:
  holdfast cp notes.txt box:/home/user/
  holdfast cp ./src box:/home/user/src
  holdfast cp box:/home/user/out ./out
  holdfast cp box:/etc/os-release -
  date | holdfast cp - box:/tmp/now`,
    )
    .action(async (source: string, target: string) => {
      const skipped = await copy(context, parsePlace(source), parsePlace(target));
      if (skipped > 0) context.exitCode = 1;
    });
}

async function copy(context: Context, from: Place, to: Place): Promise<number> {
  const { signal } = context.interruption;
  const open = (name: string): Promise<Sandbox> => context.client().sandboxes.get(name, { signal });
  if (from.kind === "sandbox" && to.kind !== "sandbox") {
    const box = await open(from.sandbox);
    if (to.kind === "local") return counting((tally) => download(box, from.path, to.path, tally, signal));
    for await (const piece of await box.files.readStream(from.path, { signal })) {
      await writeTo("stdout", piece, signal);
    }
    return 0;
  }
  if (to.kind === "sandbox" && from.kind !== "sandbox") {
    const box = await open(to.sandbox);
    if (from.kind === "local") return counting((tally) => upload(box, from.path, to.path, tally, signal));
    await box.files.write(to.path, process.stdin as AsyncIterable<Uint8Array>, { signal });
    return 0;
  }
  throw usage("one side of a copy, and only one, is in a sandbox", "Write that one as NAME:/path.");
}

/** Says how many were left out. */
const counting = (work: (tally: Tally) => Promise<void>): Promise<number> =>
  withSpinner("copying", async ({ update }) => {
    const tally = new Tally(update);
    await work(tally);
    return tally.skipped;
  });
