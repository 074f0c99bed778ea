import type { Holdfast, SweepItem, SweepReport } from "@holdfast/sdk";
import type { Command } from "commander";
import type { Context } from "../../context.ts";
import { EXIT, Failure } from "../../failure.ts";
import { withSpinner } from "../../output/spinner.ts";
import { print, printError } from "../../output/streams.ts";
import { asJson, counted, table } from "../../output/table.ts";
import { canAsk, confirm } from "../../terminal/confirm.ts";

interface Options {
  emergency?: boolean;
  dryRun?: boolean;
  yes?: boolean;
  json?: boolean;
}

export function registerCleanup(program: Command, context: Context): void {
  program
    .command("cleanup")
    .summary("run the periodic cleanup now")
    .option(
      "--emergency",
      "also suspend idle sandboxes, and delete disposable sandboxes that have no running exec",
    )
    .option("--dry-run", "only show what would be removed")
    .option("-y, --yes", "skip the confirmation of an emergency cleanup")
    .option("--json", "print the report as JSON")
    .description(
      "Removes failed sandboxes and records past their retention, and sandboxes past their --ttl. With --emergency, the " +
        "cleanup first suspends idle sandboxes, and it also deletes sandboxes created with --disposable; on a terminal it " +
        "asks for confirmation.\n\n" +
        "Exits 1 if something could not be removed.",
    )
    .addHelpText(
      "after",
      `
Examples:
  holdfast cleanup --dry-run
  holdfast cleanup
  holdfast cleanup --emergency --yes`,
    )
    .action(async (options: Options) => {
      const { emergency = false, dryRun = false, json } = options;
      const { signal } = context.interruption;
      const client = context.client();
      if (emergency && !dryRun && !options.yes && canAsk()) await agree(client, signal);
      const report = await withSpinner("cleaning up", () => client.cleanup({ dryRun, emergency, signal }));
      print(json ? asJson(report) : textOf(report));
      if (report.failed > 0) context.exitCode = EXIT.failed;
    });
}

/** Asks for confirmation if the emergency cleanup would delete disposable sandboxes. Throws if the user declines. */
async function agree(client: Holdfast, signal: AbortSignal): Promise<void> {
  const { items } = await client.cleanup({ dryRun: true, emergency: true, signal });
  const disposable = items.filter(({ rule }) => rule === "disposable");
  if (disposable.length === 0) return;
  printError(listing(disposable));
  const question = `Delete ${counted(disposable.length, "sandbox", "sandboxes")}?`;
  if (!(await confirm(question, signal))) throw new Failure("nothing was removed");
}

function textOf({ items, dryRun, removed, failed }: SweepReport): string {
  if (items.length === 0) return dryRun ? "Nothing would be removed.\n" : "Nothing to remove.\n";
  const slept = sum(items, dryRun ? "would_put_to_standby" : "put_to_standby");
  const summary = dryRun
    ? `${sum(items, "would_remove")} would be removed${slept > 0 ? `, ${slept} suspended` : ""}.`
    : `${removed} removed, ${slept > 0 ? `${slept} suspended, ` : ""}${sum(items, "ordered")} in progress, ${failed} failed.`;
  return `${listing(items)}\n${summary}\n`;
}

const listing = (items: readonly SweepItem[]): string =>
  table(
    ["RULE", "SANDBOX", "COUNT", "ACTION", "MESSAGE"],
    items.map(({ rule, sandboxId, count, action, message }) => [
      rule,
      sandboxId ?? "-",
      String(count),
      action.replaceAll("_", " "),
      message,
    ]),
  );

const sum = (items: readonly SweepItem[], action: SweepItem["action"]): number =>
  items.filter((item) => item.action === action).reduce((total, { count }) => total + count, 0);
