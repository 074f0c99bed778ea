import { ConnectionError } from "@holdfast/sdk";
import type { Command } from "commander";
import type { Context } from "../context.ts";
import { asJson, table } from "../table.ts";

/** One thing that was looked at. */
export interface Finding {
  name: string;
  ok: boolean;
  found: string;
  /** What to do about it; empty where nothing is to be done. */
  fix: string;
}

const HOST_CHECKS = "@holdfast/drivers/oci";

export function registerDoctor(program: Command, context: Context): void {
  program
    .command("doctor")
    .summary("check what this host can do, and how to fix what it can't")
    .option("--json", "print the findings as JSON")
    .description("Looks at this machine and for the server. Exits 1 if something that is needed is missing.")
    .addHelpText("after", "\nExamples:\n  holdfast doctor\n  holdfast doctor --json")
    .action(async ({ json }: { json?: boolean }) => {
      const host = await checkHost();
      const server = await checkServer(context);
      const findings = [...host, server];
      process.stdout.write(json ? asJson(findings) : listing(findings));
      // A server that isn't running is not a fault of the host: it is how every start begins.
      if (host.some(({ ok }) => !ok)) context.exitCode = 1;
    });
}

function listing(findings: readonly Finding[]): string {
  const rows = findings.map(({ name, ok, found }) => [ok ? "ok" : "MISSING", name, found]);
  const fixes = findings
    .filter(({ ok, fix }) => !ok && fix !== "")
    .map(({ name, fix }) => `${name}: ${fix}\n`)
    .join("");
  return table(["", "WHAT", "FOUND"], rows) + (fixes === "" ? "" : `\nTo do:\n${fixes}`);
}

async function checkHost(): Promise<Finding[]> {
  const driver = (await import(HOST_CHECKS)) as { checkHost(): Promise<Finding[]> };
  return driver.checkHost();
}

async function checkServer(context: Context): Promise<Finding> {
  const client = context.client();
  const name = "server";
  try {
    const { status, version, reasons } = await client.health({ signal: context.interruption.signal });
    const found = `${client.url}, version ${version}, ${[status, ...reasons].join(": ")}`;
    return {
      name,
      ok: reasons.length === 0,
      found,
      fix: reasons.length === 0 ? "" : "Look at the server's log.",
    };
  } catch (error) {
    if (!(error instanceof ConnectionError)) throw error;
    return { name, ok: false, found: `none at ${client.url}`, fix: "Start it with 'npm start'." };
  }
}
