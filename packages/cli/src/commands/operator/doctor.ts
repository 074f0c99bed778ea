import type { HostCheck } from "@holdfast/drivers/oci";
import { ConnectionError, remoteUrls, stateDirectory } from "@holdfast/sdk";
import type { Command } from "commander";
import type { Context } from "../../context.ts";
import { print } from "../../output/streams.ts";
import { asJson, table } from "../../output/table.ts";

export function registerDoctor(program: Command, context: Context): void {
  program
    .command("doctor")
    .summary("check this host's requirements and suggest fixes")
    .option("--json", "print the findings as JSON")
    .description("Checks this machine and the server. Exits 1 if a requirement is missing.")
    .addHelpText("after", "\nExamples:\n  holdfast doctor\n  holdfast doctor --json")
    .action(async ({ json }: { json?: boolean }) => {
      // The driver is imported on demand, because no other command needs it.
      const { checkHost } = await import("@holdfast/drivers/oci");
      const checks = [...(await checkHost(stateDirectory())), await checkServer(context), ...checkExposure()];
      print(json ? asJson(checks) : listing(checks));
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
  return table(["", "CHECK", "FOUND"], rows) + (fixes.length === 0 ? "" : `\nWhat to do:\n${fixes.join("")}`);
}

/** Warns if the running server of the state directory can be reached from other machines. */
function checkExposure(): HostCheck[] {
  const urls = remoteUrls();
  if (urls.length === 0) return [];
  const found = `plain HTTP at ${urls.join(", ")}: API keys travel unencrypted`;
  const fix =
    "Unset HOLDFAST_HOST and put a proxy with TLS in front: an API key gives root access to this machine.";
  return [{ name: "network", ok: false, required: false, found, fix }];
}

/**
 * Checks the server if one is running. If none is, there is no error, because 'doctor' is also run before the first
 * start.
 */
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
      fix: reasons.length === 0 ? "" : "See the server's log.",
    };
  } catch (error) {
    if (!(error instanceof ConnectionError)) throw error;
    return { ...about, ok: false, found: `none at ${client.url}`, fix: "Start it with 'npm start'." };
  }
}
