import type { AuditFinding, AuditReport } from "@holdfast/sdk";
import type { Command } from "commander";
import type { Context } from "../../context.ts";
import { EXIT, Failure } from "../../failure.ts";
import { withSpinner } from "../../output/spinner.ts";
import { print, printError } from "../../output/streams.ts";
import { ahead, asJson, counted, table } from "../../output/table.ts";

/**
 * Maximum number of things listed per finding. A longer list would push the message off the screen; `--json` prints
 * all.
 */
const THINGS_SHOWN = 3;

export function registerAudit(program: Command, context: Context): void {
  program
    .command("audit")
    .summary("audit records against the host's state")
    .option("--last", "show the last audit instead of running one")
    .option("--json", "print the report as JSON")
    .description(
      "Compares every record with the host, and every resource that carries Holdfast's marker with its record. " +
        "Differences are corrected immediately, removed after a grace period, or left alone for the reason in the message.\n\n" +
        "Exits 1 if something could not be listed or corrected.",
    )
    .addHelpText("after", "\nExamples:\n  holdfast audit\n  holdfast audit --last --json")
    .action(async ({ last, json }: { last?: boolean; json?: boolean }) => {
      const report = await (last ? lastAudit(context) : audit(context));
      print(json ? asJson(report) : textOf(report));
      if (!report.complete) {
        printError(
          "holdfast: the audit is incomplete: some resources could not be listed, so nothing was removed\n",
        );
      }
      const isFailed = report.findings.some(({ action }) => action === "failed");
      if (!report.complete || isFailed) context.exitCode = EXIT.failed;
    });
}

const audit = (context: Context): Promise<AuditReport> =>
  withSpinner("comparing records with the host", () =>
    context.client().audit({ signal: context.interruption.signal }),
  );

async function lastAudit(context: Context): Promise<AuditReport> {
  const report = await context.client().lastAudit({ signal: context.interruption.signal });
  if (report === null) throw new Failure("no audit has run yet", "Run 'holdfast audit'.");
  return report;
}

function textOf({ findings, complete, records, things, at, ms }: AuditReport): string {
  const what = `${counted(records, "record")} and ${counted(things, "resource")}`;
  const compared = `${what} compared at ${at}, in ${Math.round(ms)} ms.\n`;
  if (findings.length > 0) return `${listing(findings)}\n${compared}`;
  return complete ? `No differences found.\n${compared}` : compared;
}

const listing = (findings: readonly AuditFinding[]): string =>
  table(
    ["KIND", "SUBJECT", "RESOURCES", "ACTION", "MESSAGE"],
    findings.map(({ kind, sandboxId, driveId, things, action, message, nextAt }) => [
      kind,
      sandboxId ?? driveId ?? "",
      shortened(things),
      nextAt === undefined ? action : `${action}, due ${ahead(nextAt)}`,
      message,
    ]),
  );

function shortened(things: readonly string[]): string {
  const more = things.length - THINGS_SHOWN;
  const shown = things.slice(0, THINGS_SHOWN).join(", ");
  return more > 0 ? `${shown} and ${more} more` : shown;
}
