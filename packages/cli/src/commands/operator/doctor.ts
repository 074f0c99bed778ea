import type { HostCheck } from "@holdfast/drivers/oci";
import { ConnectionError, stateDirectory } from "@holdfast/sdk";
import type { Command } from "commander";
import type { Context } from "../context.ts";
import { asJson, table } from "../table.ts";

export function registerDoctor(program: Command, context: Context): void {
  program
    .command("doctor")
    .summary("check what this host can do, and how to fix what it can't")
    .option("--json", "print the findings as JSON")
    .description("Looks at this machine and for the server. Exits 1 if something that is needed is missing.")
    .addHelpText("after", "\nExamples:\n  holdfast doctor\n  holdfast doctor --json")
    .action(async ({ json }: { json?: boolean }) => {
      // Loaded here: no other command needs a driver.
      const { checkHost } = await import("@holdfast/drivers/oci");
      const checks = [...(await checkHost(stateDirectory())), await checkServer(context)];
      process.stdout.write(json ? asJson(checks) : listing(checks));
      if (checks.some(({ ok, required }) => required && !ok)) context.exitCode = 1;
    });
}

function listing(checks: readonly HostCheck[]): string {
  const rows = checks.map(({ name, ok, required, found }) => [
    ok ? "ok" : required ? "MISSING" : "optional",
    name,
    found,
  ]);
  const fixes = checks.filter(({ ok }) => !ok).map(({ name, fix }) => `  ${name}: ${fix}\n`);
  return table(["", "WHAT", "FOUND"], rows) + (fixes.length === 0 ? "" : `\nWhat to do:\n${fixes.join("")}`);
}

/** Not required: every start begins without a server. */
async function checkServer(context: Context): Promise<HostCheck> {
  const client = context.client();
  const about = { name: "server", required: false };
  try {
    const { status, version, reasons } = await client.health({ signal: context.interruption.signal });
    const found = `${client.url}, version ${version}, ${[status, ...reasons].join(": ")}`;
    return {
      ...about,
      ok: reasons.length === 0,
      found,
      fix: reasons.length === 0 ? "" : "Look at the server's log.",
    };
  } catch (error) {
    if (!(error instanceof ConnectionError)) throw error;
    return { ...about, ok: false, found: `none at ${client.url}`, fix: "Start it with 'npm start'." };
  }
}
