import type { Checkpoint } from "@holdfast/sdk";
import type { Command } from "commander";
import type { Context } from "../../context.ts";
import { forEachOf } from "../../each.ts";
import { findSandbox } from "../../lookup.ts";
import { withSpinner } from "../../output/spinner.ts";
import { print, printError } from "../../output/streams.ts";
import { age, asJson, printable, size, table } from "../../output/table.ts";

export function registerCheckpoint(program: Command, context: Context): void {
  const checkpoint = program
    .command("checkpoint")
    .summary("create, list and delete snapshots of sandboxes")
    .description(
      "A checkpoint is a snapshot of a sandbox: its files, and its memory if the host can save it. Any number of sandboxes can " +
        "be created from it ('holdfast create --from-checkpoint'). Deleting the sandbox deletes its checkpoints.",
    )
    .addHelpText(
      "after",
      `
Examples:
  holdfast checkpoint create box
  holdfast checkpoint ls box
  holdfast create --from-checkpoint "$(holdfast checkpoint create box)" other
  holdfast checkpoint rm box before-upgrade`,
    );
  registerCreate(checkpoint, context);
  registerLs(checkpoint, context);
  registerRm(checkpoint, context);
}

interface CreateOptions {
  name?: string;
  json?: boolean;
}

function registerCreate(checkpoint: Command, context: Context): void {
  checkpoint
    .command("create")
    .summary("take a snapshot of a sandbox")
    .argument("<sandbox>", "name or id")
    .option("--name <name>", "name, unique among the sandbox's checkpoints (default: generated)")
    .option("--json", "print the checkpoint as JSON")
    .description(
      "Freezes a sandbox, takes a snapshot of it, and prints the checkpoint's id once the checkpoint is stored and the sandbox " +
        "is proven to serve again. Calls to the sandbox wait meanwhile. A failure leaves the sandbox unchanged.",
    )
    .addHelpText(
      "after",
      "\nExamples:\n  holdfast checkpoint create box\n  holdfast checkpoint create --name before-upgrade box",
    )
    .action(async (sandbox: string, { name, json }: CreateOptions) => {
      const { signal } = context.interruption;
      const box = await context.client().sandboxes.get(sandbox, { signal });
      const made = await withSpinner(`copying ${box.name}`, () => box.checkpoints.create({ name, signal }));
      print(json ? asJson(made) : `${made.id}\n`);
      if (made.kind === "files") {
        const text = `checkpoint ${made.name} has files only, no memory: sandboxes created from it start with no running processes`;
        printError(`holdfast: ${printable(text)}\n`);
      }
    });
}

function registerLs(checkpoint: Command, context: Context): void {
  checkpoint
    .command("ls")
    .summary("list the checkpoints of a sandbox")
    .argument("<sandbox>", "name or id")
    .option("--json", "print the list as JSON")
    .description("Lists the checkpoints of a sandbox, oldest first. Does not wake the sandbox.")
    .addHelpText("after", "\nExamples:\n  holdfast checkpoint ls box\n  holdfast checkpoint ls --json box")
    .action(async (sandbox: string, { json }: { json?: boolean }) => {
      const box = await findSandbox(context, sandbox);
      const found = await box.checkpoints.list({ signal: context.interruption.signal });
      print(json ? asJson(found) : listing(found));
    });
}

const listing = (found: readonly Checkpoint[]): string =>
  table(
    ["NAME", "ID", "CONTENT", "SIZE", "EXECS", "AGE"],
    found.map(({ name, id, kind, sizeBytes, execs, createdAt }) => [
      name,
      id,
      kind === "memory" ? "memory and files" : "files only",
      size(sizeBytes),
      String(execs.length),
      age(createdAt),
    ]),
  );

function registerRm(checkpoint: Command, context: Context): void {
  checkpoint
    .command("rm")
    .summary("delete checkpoints of a sandbox")
    .argument("<sandbox>", "name or id")
    .argument("<checkpoints...>", "names or ids of checkpoints")
    .description(
      "Deletes checkpoints and prints each one's name or id, as given, once it is deleted. Sandboxes created from them are not affected.",
    )
    .addHelpText("after", "\nExamples:\n  holdfast checkpoint rm box before-upgrade after-upgrade")
    .action(async (sandbox: string, checkpoints: string[]) => {
      const { signal } = context.interruption;
      const box = await findSandbox(context, sandbox);
      await withSpinner(`deleting ${checkpoints.length}`, () =>
        forEachOf(context, checkpoints, async (which) => {
          await box.checkpoints.delete(which, { signal });
          print(`${which}\n`);
        }),
      );
    });
}
