import type { Checkpoint } from "@holdfast/sdk";
import type { Command } from "commander";
import type { Context } from "../context.ts";
import { forEachOf } from "../each.ts";
import { findSandbox } from "../lookup.ts";
import { withSpinner } from "../spinner.ts";
import { age, asJson, printable, size, table } from "../table.ts";

export function registerCheckpoint(program: Command, context: Context): void {
  const checkpoint = program
    .command("checkpoint")
    .summary("keep copies of sandboxes to begin others with")
    .description(
      "A checkpoint is a copy of a sandbox at one moment: its files, and its memory where the host can save that. Any number of\n" +
        "sandboxes can begin with it ('holdfast create --from-checkpoint'). It belongs to its sandbox, and goes with it.",
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
    .summary("keep a copy of a sandbox as it is now")
    .argument("<sandbox>", "name or id")
    .option("--name <name>", "its name, which no other checkpoint of the sandbox has (default: made up)")
    .option("--json", "print the checkpoint as JSON")
    .description(
      "Copies a sandbox and prints the checkpoint's id once it is kept and the sandbox, which is frozen meanwhile, is proven to\n" +
        "serve again. Calls into it wait for that. One that fails leaves the sandbox as it was.",
    )
    .addHelpText(
      "after",
      "\nExamples:\n  holdfast checkpoint create box\n  holdfast checkpoint create --name before-upgrade box",
    )
    .action(async (sandbox: string, { name, json }: CreateOptions) => {
      const { signal } = context.interruption;
      const box = await context.client().sandboxes.get(sandbox, { signal });
      const made = await withSpinner(`copying ${box.name}`, () => box.checkpoints.create({ name, signal }));
      process.stdout.write(json ? asJson(made) : `${made.id}\n`);
      if (made.kind === "files") {
        const text = `checkpoint ${made.name} has files only, no memory: what begins with it starts anew`;
        process.stderr.write(`holdfast: ${printable(text)}\n`);
      }
    });
}

function registerLs(checkpoint: Command, context: Context): void {
  checkpoint
    .command("ls")
    .summary("list the checkpoints of a sandbox")
    .argument("<sandbox>", "name or id")
    .option("--json", "print them as JSON")
    .description("Lists the checkpoints of a sandbox, oldest first. One that sleeps is not woken.")
    .addHelpText("after", "\nExamples:\n  holdfast checkpoint ls box\n  holdfast checkpoint ls --json box")
    .action(async (sandbox: string, { json }: { json?: boolean }) => {
      const box = await findSandbox(context, sandbox);
      const found = await box.checkpoints.list({ signal: context.interruption.signal });
      process.stdout.write(json ? asJson(found) : listing(found));
    });
}

const listing = (found: readonly Checkpoint[]): string =>
  table(
    ["NAME", "ID", "KEEPS", "SIZE", "EXECS", "AGE"],
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
    .summary("remove checkpoints of a sandbox")
    .argument("<sandbox>", "name or id")
    .argument("<checkpoints...>", "their names or ids")
    .description(
      "Removes checkpoints and prints each as it was named once it is removed. Sandboxes that began with one are not affected.",
    )
    .addHelpText("after", "\nExamples:\n  holdfast checkpoint rm box before-upgrade after-upgrade")
    .action(async (sandbox: string, checkpoints: string[]) => {
      const { signal } = context.interruption;
      const box = await findSandbox(context, sandbox);
      await withSpinner(`removing ${checkpoints.length}`, () =>
        forEachOf(context, checkpoints, async (which) => {
          await box.checkpoints.delete(which, { signal });
          process.stdout.write(`${which}\n`);
        }),
      );
    });
}
