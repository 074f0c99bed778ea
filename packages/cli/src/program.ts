import { readFileSync } from "node:fs";
import { Command } from "commander";
import { registerAlerts } from "./commands/alerts.ts";
import { registerAttach } from "./commands/attach.ts";
import { registerAudit } from "./commands/audit.ts";
import { registerCheckpoint } from "./commands/checkpoint.ts";
import { registerCleanup } from "./commands/cleanup.ts";
import { registerCp } from "./commands/cp.ts";
import { registerDiagnose } from "./commands/diagnose.ts";
import { registerDoctor } from "./commands/doctor.ts";
import { registerDrive } from "./commands/drive.ts";
import { registerEvents } from "./commands/events.ts";
import { registerExec } from "./commands/exec.ts";
import { registerExecs } from "./commands/execs.ts";
import { registerImage } from "./commands/image.ts";
import { registerLogs } from "./commands/logs.ts";
import { registerMounts } from "./commands/mounts.ts";
import { registerPreview } from "./commands/preview.ts";
import { registerProcesses } from "./commands/processes.ts";
import { registerResources } from "./commands/resources.ts";
import { registerRun } from "./commands/run.ts";
import { registerSandboxes } from "./commands/sandboxes.ts";
import { registerServerLogs } from "./commands/server-logs.ts";
import { registerShell } from "./commands/shell.ts";
import { registerStandby } from "./commands/standby.ts";
import { registerStats } from "./commands/stats.ts";
import { registerTop } from "./commands/top.ts";
import { registerUpdate } from "./commands/update.ts";
import type { Context } from "./context.ts";

const { version } = JSON.parse(readFileSync(new URL("../package.json", import.meta.url), "utf8")) as {
  version: string;
};

/** The command line as a whole. */
export function programOf(context: Context): Command {
  const program = new Command("holdfast")
    .description("Sandboxes that never lie, never hang and never leak.")
    .version(version)
    .enablePositionalOptions()
    .exitOverride()
    .showHelpAfterError("Add --help for how to use it.")
    .configureOutput({
      outputError: (text, write) => write(text.replace(/^error: /, "holdfast: ")),
    })
    .addHelpText(
      "after",
      `
Where the server is: HOLDFAST_URL and HOLDFAST_API_KEY; on the server's machine both are found by themselves, in
HOLDFAST_DIR or its default.

Examples:
  holdfast doctor
  holdfast run -- sh -c 'echo hi; exit 3'
  holdfast create box && holdfast exec box -- uname -a && holdfast rm box
  holdfast shell box`,
    );
  registerDoctor(program, context);
  registerRun(program, context);
  registerSandboxes(program, context);
  registerUpdate(program, context);
  registerStandby(program, context);
  registerCheckpoint(program, context);
  registerExec(program, context);
  registerShell(program, context);
  registerAttach(program, context);
  registerExecs(program, context);
  registerLogs(program, context);
  registerProcesses(program, context);
  registerCp(program, context);
  registerDrive(program, context);
  registerMounts(program, context);
  registerPreview(program, context);
  registerTop(program, context);
  registerResources(program, context);
  registerDiagnose(program, context);
  registerEvents(program, context);
  registerStats(program, context);
  registerAlerts(program, context);
  registerServerLogs(program, context);
  registerAudit(program, context);
  registerCleanup(program, context);
  registerImage(program, context);
  return program;
}
