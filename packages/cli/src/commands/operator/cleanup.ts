import type { Holdfast, SweepItem, SweepReport } from "@holdfast/sdk";
import type { Command } from "commander";
import { canAsk, confirm } from "../confirm.ts";
import type { Context } from "../context.ts";
import { EXIT, Failure } from "../failure.ts";
import { withSpinner } from "../spinner.ts";
import { asJson, counted, table } from "../table.ts";

interface Options {
  emergency?: boolean;
  dryRun?: boolean;
  yes?: boolean;
  json?: boolean;
}

export function registerCleanup(program: Command, context: Context): void {
  program
    .command("cleanup")
    .summary("remove now what the sweeps would remove in time")
    .option(
      "--emergency",
      "put to standby what is idle, and delete what is disposable and has no exec under way",
    )
    .option("--dry-run", "remove nothing; show what would be removed")
    .option("-y, --yes", "don't ask before an emergency cleanup")
    .option("--json", "print the report as JSON")
    .description(
      "Removes failed sandboxes that were kept long enough, sandboxes past their --ttl, and records past their retention.\n" +
        "With --emergency what is idle is put to standby first, and what was created --disposable goes too; on a terminal it\n" +
        "asks first.\n" +
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
      process.stdout.write(json ? asJson(report) : textOf(report));
      if (report.failed > 0) context.exitCode = EXIT.failed;
    });
}

/** Asks where an emergency would cost a sandbox that no other rule takes; throws on a no. */
async function agree(client: Holdfast, signal: AbortSignal): Promise<void> {
  const { items } = await client.cleanup({ dryRun: true, emergency: true, signal });
  const disposable = items.filter(({ rule }) => rule === "disposable");
  if (disposable.length === 0) return;
  process.stderr.write(listing(disposable));
  const question = `Delete ${counted(disposable.length, "sandbox", "sandboxes")}?`;
  if (!(await confirm(question, signal))) throw new Failure("nothing was removed");
}

function textOf({ items, dryRun, removed, failed }: SweepReport): string {
  if (items.length === 0) return dryRun ? "Nothing would be removed.\n" : "Nothing had to be removed.\n";
  const slept = sum(items, dryRun ? "would_put_to_standby" : "put_to_standby");
  const summary = dryRun
    ? `${sum(items, "would_remove")} would be removed${slept > 0 ? `, ${slept} put to standby` : ""}.`
    : `${removed} removed, ${slept > 0 ? `${slept} put to standby, ` : ""}${sum(items, "ordered")} still going, ${failed} failed.`;
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
