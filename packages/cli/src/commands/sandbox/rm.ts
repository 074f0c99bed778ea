import { HoldfastError, NotFoundError, type SandboxInfo } from "@holdfast/sdk";
import type { Command } from "commander";
import { label } from "../../arguments/values.ts";
import { type Context, everything } from "../../context.ts";
import { forEachOf } from "../../each.ts";
import { Failure, usage } from "../../failure.ts";
import { findSandbox } from "../../lookup.ts";
import { withSpinner } from "../../output/spinner.ts";
import { print, printError } from "../../output/streams.ts";
import { age, counted, labelsOf, table } from "../../output/table.ts";
import { canAsk, confirm } from "../../terminal/confirm.ts";

interface Options {
  force?: boolean;
  all?: boolean;
  label?: Record<string, string>;
  yes?: boolean;
}

/** Number of sandboxes that the confirmation question lists. */
const SHOWN = 20;

export function registerRm(program: Command, context: Context): void {
  program
    .command("rm")
    .summary("delete sandboxes and verify their absence")
    .argument("[sandboxes...]", "names or ids")
    .option("--all", "delete every sandbox")
    .option("--label <key=value>", "delete the sandboxes with this label; repeatable", label)
    .option("-f, --force", "ignore sandboxes that do not exist, and never ask")
    .option("-y, --yes", "skip the confirmation of --all and --label")
    .description(
      "Deletes sandboxes in any state and prints each name once its absence was observed. On a terminal, --all and --label " +
        "list the sandboxes and ask for confirmation; without a terminal they do not ask.",
    )
    .addHelpText(
      "after",
      "\nExamples:\n  holdfast rm box other\n  holdfast rm --label team=red\n  holdfast rm --all --yes",
    )
    .action(async (names: string[], options: Options) => {
      const targets = await targetsOf(context, names, options);
      await withSpinner(`deleting ${counted(targets.length, "sandbox", "sandboxes")}`, () =>
        forEachOf(context, targets, async (name) => {
          const removed = await removeOne(context, name, options.force ?? false);
          if (removed !== null) print(`${removed}\n`);
        }),
      );
    });
}

/** Returns what to delete: the given names, or the ids of the selected sandboxes once the user has agreed. */
async function targetsOf(context: Context, names: string[], options: Options): Promise<string[]> {
  const { all, label: labels, force, yes } = options;
  const ways = [names.length > 0, all, labels !== undefined].filter(Boolean).length;
  if (ways !== 1) throw usage("name the sandboxes to delete, or pass either --all or --label");
  if (names.length > 0) return names;
  const { signal } = context.interruption;
  const { sandboxes } = context.client();
  const found = await everything((page) => sandboxes.list({ labels, signal, ...page }));
  if (found.length === 0 && labels !== undefined)
    printError(`holdfast: no sandbox has the label ${labelsOf(labels)}\n`);
  if (found.length > 0 && !yes && !force && canAsk()) await agree(found, signal);
  return found.map(({ id }) => id);
}

async function agree(found: readonly SandboxInfo[], signal: AbortSignal): Promise<void> {
  const rows = found
    .slice(0, SHOWN)
    .map(({ name, status, createdAt, labels }) => [name, status, age(createdAt), labelsOf(labels)]);
  const more = found.length > SHOWN ? `… and ${found.length - SHOWN} more\n` : "";
  printError(table(["NAME", "STATUS", "AGE", "LABELS"], rows) + more);
  const question = `Delete ${counted(found.length, "sandbox", "sandboxes")}?`;
  if (!(await confirm(question, signal))) throw new Failure("nothing was deleted");
}

async function removeOne(context: Context, name: string, force: boolean): Promise<string | null> {
  const { signal } = context.interruption;
  try {
    const box = await findSandbox(context, name);
    await box.delete({ signal });
    return box.name;
  } catch (error) {
    if (force && error instanceof NotFoundError) return null;
    if (!(error instanceof HoldfastError) || error.code !== "pending_cleanup") throw error;
    // The sandbox has no readable record. Its processes and files may still exist, and can be removed by its id.
    await context.client().sandboxes.delete(name, { signal });
    return name;
  }
}
