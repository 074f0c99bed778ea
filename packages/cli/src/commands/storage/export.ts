import { createReadStream } from "node:fs";
import type { Command } from "commander";
import type { Context } from "../../context.ts";
import { usage } from "../../failure.ts";
import { print, writeTo } from "../../output/streams.ts";
import { asJson } from "../../output/table.ts";
import { unreadable } from "../../transfer/local-file.ts";

interface ImportOptions {
  name?: string;
  json?: boolean;
}

export function registerExport(program: Command, context: Context): void {
  program
    .command("export")
    .summary("export a sandbox as one archive, on stdout")
    .argument("<sandbox>", "id or name")
    .description(
      "Writes the sandbox's files, description and image to stdout as a tar archive, without its memory and drives. Freezes " +
        "a running sandbox while it copies the files. Does not wake a sandbox in standby.",
    )
    .addHelpText("after", "\nExamples:\n  holdfast export box > box.tar")
    .action((ref: string) => write(context, "sandboxes", ref));

  program
    .command("import")
    .summary("create a sandbox from an exported archive")
    .argument("<file>", "an archive made by 'holdfast export', or - for stdin")
    .option("--name <name>", "name of the sandbox (default: the exported name)")
    .option("--json", "print the sandbox as JSON")
    .description(
      "Creates a sandbox, with an id of its own, from an exported archive. The sandbox is in standby; the first call starts " +
        "it on its files.",
    )
    .addHelpText(
      "after",
      "\nExamples:\n  holdfast import box.tar\n  holdfast import --name second - < box.tar",
    )
    .action(async (file: string, { name, json }: ImportOptions) => {
      const { signal } = context.interruption;
      const made = await context.client().importSandbox(archiveIn(file), { name, signal });
      print(json ? asJson(made) : `${made.name ?? made.id}\n`);
    });
}

/** Adds `export` and `import` to the command of drives. */
export function registerDriveExport(drive: Command, context: Context): void {
  drive
    .command("export")
    .summary("export a drive as one archive, on stdout")
    .argument("<drive>", "id or name")
    .description(
      "Writes the drive to stdout as a tar archive. Freezes the sandboxes that can write to the drive while it copies it.",
    )
    .addHelpText("after", "\nExamples:\n  holdfast drive export data > data.tar")
    .action((ref: string) => write(context, "drives", ref));

  drive
    .command("import")
    .summary("create a drive from an exported archive")
    .argument("<file>", "an archive made by 'holdfast drive export', or - for stdin")
    .option("--name <name>", "name of the drive (default: the exported name)")
    .option("--json", "print the drive as JSON")
    .addHelpText("after", "\nExamples:\n  holdfast drive import data.tar")
    .action(async (file: string, { name, json }: ImportOptions) => {
      const { signal } = context.interruption;
      const made = await context.client().importDrive(archiveIn(file), { name, signal });
      print(json ? asJson(made) : `${made.name}\n`);
    });
}

async function* archiveIn(file: string): AsyncGenerator<Uint8Array> {
  try {
    yield* file === "-" ? process.stdin : createReadStream(file);
  } catch (error) {
    throw unreadable(file, error);
  }
}

async function write(context: Context, kind: "sandboxes" | "drives", ref: string): Promise<void> {
  if (process.stdout.isTTY)
    throw usage("an archive cannot be written to a terminal", "Redirect it to a file: '> FILE'.");
  const { signal } = context.interruption;
  for await (const piece of await context.client().export(kind, ref, { signal }))
    await writeTo("stdout", piece, signal);
}
