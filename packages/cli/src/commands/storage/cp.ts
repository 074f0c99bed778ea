import type { Files } from "@holdfast/sdk";
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
    .summary("copy files into and out of a sandbox or drive")
    .argument("<source>", "NAME:/path in a sandbox, drive:NAME:/path, a local path, or - for stdin")
    .argument("<target>", "NAME:/path in a sandbox, drive:NAME:/path, a local path, or - for stdout")
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
  holdfast cp ./models drive:data:/models
  holdfast cp box:/etc/os-release -
  date | holdfast cp - box:/tmp/now`,
    )
    .action(async (source: string, target: string) => {
      const skipped = await copy(context, parsePlace(source), parsePlace(target));
      if (skipped > 0) context.exitCode = 1;
    });
}

/** An end of a copy that is not here. */
type Away = Extract<Place, { kind: "sandbox" | "drive" }>;
const isAway = (place: Place): place is Away => place.kind === "sandbox" || place.kind === "drive";

async function copy(context: Context, from: Place, to: Place): Promise<number> {
  const { signal } = context.interruption;
  if (isAway(from) && !isAway(to)) {
    const files = await filesOf(context, from);
    if (to.kind === "local") return counting((tally) => download(files, from.path, to.path, tally, signal));
    for await (const piece of await files.readStream(from.path, { signal })) {
      await writeTo("stdout", piece, signal);
    }
    return 0;
  }
  if (isAway(to) && !isAway(from)) {
    const files = await filesOf(context, to);
    if (from.kind === "local") return counting((tally) => upload(files, from.path, to.path, tally, signal));
    await files.write(to.path, process.stdin as AsyncIterable<Uint8Array>, { signal });
    return 0;
  }
  throw usage(
    "one side of a copy, and only one, is in a sandbox or drive",
    "Write that one as NAME:/path or drive:NAME:/path.",
  );
}

async function filesOf(context: Context, { kind, name }: Away): Promise<Files> {
  const { signal } = context.interruption;
  const { sandboxes, drives } = context.client();
  const { files } = await (kind === "drive" ? drives : sandboxes).get(name, { signal });
  return files;
}

/** Says how many were left out. */
const counting = (work: (tally: Tally) => Promise<void>): Promise<number> =>
  withSpinner("copying", async ({ update }) => {
    const tally = new Tally(update);
    await work(tally);
    return tally.skipped;
  });
