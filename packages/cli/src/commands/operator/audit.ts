import type { AuditFinding, AuditReport } from "@holdfast/sdk";
import type { Command } from "commander";
import type { Context } from "../context.ts";
import { EXIT, Failure } from "../failure.ts";
import { withSpinner } from "../spinner.ts";
import { ahead, asJson, counted, table } from "../table.ts";

/** More of them would push the message off the screen; `--json` has all. */
const THINGS_SHOWN = 3;

export function registerAudit(program: Command, context: Context): void {
  program
    .command("audit")
    .summary("compare records with reality, both ways")
    .option("--last", "show the last audit instead of making one")
    .option("--json", "print the report as JSON")
    .description(
      "Compares every record with what is there, and all that carries our marker with its record.\n" +
        "What differs is corrected at once, removed after its grace, or left; the message says why.\n" +
        "Exits 1 if something could not be listed, or not be dealt with.",
    )
    .addHelpText("after", "\nExamples:\n  holdfast audit\n  holdfast audit --last --json")
    .action(async ({ last, json }: { last?: boolean; json?: boolean }) => {
      const report = await (last ? lastAudit(context) : audit(context));
      process.stdout.write(json ? asJson(report) : textOf(report));
      if (!report.complete) {
        process.stderr.write(
          "holdfast: the audit is incomplete: not everything could be listed, so nothing was removed\n",
        );
      }
      const isFailed = report.findings.some(({ action }) => action === "failed");
      if (!report.complete || isFailed) context.exitCode = EXIT.failed;
    });
}

const audit = (context: Context): Promise<AuditReport> =>
  withSpinner("comparing records with reality", () =>
    context.client().audit({ signal: context.interruption.signal }),
  );

async function lastAudit(context: Context): Promise<AuditReport> {
  const report = await context.client().lastAudit({ signal: context.interruption.signal });
  if (report === null) throw new Failure("no audit was made yet", "'holdfast audit' makes one.");
  return report;
}

function textOf({ findings, complete, records, things, at, ms }: AuditReport): string {
  const what = `${counted(records, "record")} and ${counted(things, "thing")}`;
  const compared = `${what} compared at ${at}, in ${Math.round(ms)} ms.\n`;
  if (findings.length > 0) return `${listing(findings)}\n${compared}`;
  return complete ? `Records and reality agree.\n${compared}` : compared;
}

const listing = (findings: readonly AuditFinding[]): string =>
  table(
    ["KIND", "OF", "THINGS", "ACTION", "MESSAGE"],
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
