import type { Files } from "@holdfast/sdk";
import type { Command } from "commander";
import type { Context } from "../../context.ts";
import { usage } from "../../failure.ts";
import { withSpinner } from "../../output/spinner.ts";
import { download, downloadStream } from "../../transfer/download.ts";
import { type Place, parsePlace } from "../../transfer/place.ts";
import { Tally } from "../../transfer/tally.ts";
import { upload, uploadStream } from "../../transfer/upload.ts";

export function registerCp(program: Command, context: Context): void {
  program
    .command("cp")
    .summary("copy files into and out of a sandbox or drive")
    .argument("<source>", "NAME:/path in a sandbox, drive:NAME:/path, a local path, or - for stdin")
    .argument("<target>", "NAME:/path in a sandbox, drive:NAME:/path, a local path, or - for stdout")
    .description(
      "Copies a file, or a directory with its contents. If the target is an existing directory, copies into it; 'dir/.' copies " +
        "the contents of dir. Preserves permissions and symbolic links, and the times of a directory's contents, but not " +
        "owners. Skips and reports sockets, pipes, devices and local names that are not UTF-8.\n\n" +
        "With - as the target, a directory is written to stdout as a tar archive. With - as the source and a target that is " +
        "a directory or ends with '/', stdin is unpacked as a tar archive.",
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
  holdfast cp box:/home/user/out - | tar t
  date | holdfast cp - box:/tmp/now
  git archive HEAD | holdfast cp - box:/home/user/src/`,
    )
    .action(async (source: string, target: string) => {
      const skipped = await copy(context, parsePlace(source), parsePlace(target));
      if (skipped > 0) context.exitCode = 1;
    });
}

/** A source or target that is not on the local machine. */
type Away = Extract<Place, { kind: "sandbox" | "drive" }>;
const isAway = (place: Place): place is Away => place.kind === "sandbox" || place.kind === "drive";

async function copy(context: Context, from: Place, to: Place): Promise<number> {
  const { signal } = context.interruption;
  if (isAway(from) && !isAway(to)) {
    const files = await filesOf(context, from);
    if (to.kind === "local") return counting((tally) => download(files, from.path, to.path, tally, signal));
    await downloadStream(files, from.path, signal);
    return 0;
  }
  if (isAway(to) && !isAway(from)) {
    const files = await filesOf(context, to);
    if (from.kind === "local") return counting((tally) => upload(files, from.path, to.path, tally, signal));
    await uploadStream(files, process.stdin as AsyncIterable<Uint8Array>, to.path, signal);
    return 0;
  }
  throw usage(
    "exactly one of source and target must be in a sandbox or drive",
    "Write it as NAME:/path or drive:NAME:/path.",
  );
}

async function filesOf(context: Context, { kind, name }: Away): Promise<Files> {
  const { signal } = context.interruption;
  const { sandboxes, drives } = context.client();
  const { files } = await (kind === "drive" ? drives : sandboxes).get(name, { signal });
  return files;
}

/** Runs the copy with a progress line and returns how many entries were skipped. */
const counting = (work: (tally: Tally) => Promise<void>): Promise<number> =>
  withSpinner("copying", async ({ update }) => {
    const tally = new Tally(update);
    await work(tally);
    return tally.skipped;
  });
