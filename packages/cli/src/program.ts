import { readFileSync } from "node:fs";
import { Command, Help } from "commander";
import { registerAttach } from "./commands/exec/attach.ts";
import { registerExec } from "./commands/exec/exec.ts";
import { registerExecs } from "./commands/exec/execs.ts";
import { registerLogs } from "./commands/exec/logs.ts";
import { registerProcesses } from "./commands/exec/processes.ts";
import { registerRun } from "./commands/exec/run.ts";
import { registerShell } from "./commands/exec/shell.ts";
import { registerAlerts } from "./commands/operator/alerts.ts";
import { registerAudit } from "./commands/operator/audit.ts";
import { registerBackup } from "./commands/operator/backup.ts";
import { registerCleanup } from "./commands/operator/cleanup.ts";
import { registerDoctor } from "./commands/operator/doctor.ts";
import { registerEvents } from "./commands/operator/events.ts";
import { registerServerLogs } from "./commands/operator/server-logs.ts";
import { registerStats } from "./commands/operator/stats.ts";
import { registerTop } from "./commands/operator/top.ts";
import { registerCheckpoint } from "./commands/sandbox/checkpoint.ts";
import { registerDiagnose } from "./commands/sandbox/diagnose.ts";
import { registerPreview } from "./commands/sandbox/preview.ts";
import { registerResources } from "./commands/sandbox/resources.ts";
import { registerSandboxes } from "./commands/sandbox/sandboxes.ts";
import { registerStandby } from "./commands/sandbox/standby.ts";
import { registerUpdate } from "./commands/sandbox/update.ts";
import { registerCp } from "./commands/storage/cp.ts";
import { registerDrive } from "./commands/storage/drive.ts";
import { registerExport } from "./commands/storage/export.ts";
import { registerImage } from "./commands/storage/image.ts";
import { registerMounts } from "./commands/storage/mounts.ts";
import type { Context } from "./context.ts";
import { print, printError } from "./output/streams.ts";

const { version } = JSON.parse(readFileSync(new URL("../package.json", import.meta.url), "utf8")) as {
  version: string;
};

/** Builds the complete command line. */
export function programOf(context: Context): Command {
  const program = new Command("holdfast")
    .description(
      "Sandboxes that never lie, never hang and never leak.\n\n" +
        "HOLDFAST_URL and HOLDFAST_API_KEY select the server. On the server's machine, the CLI finds both in the server's state " +
        "directory (HOLDFAST_DIR or the default).",
    )
    .version(version)
    .enablePositionalOptions()
    .exitOverride()
    .configureHelp({ minWidthToWrap: 30, subcommandTerm })
    .showHelpAfterError("Add --help for usage.")
    .configureOutput({
      writeOut: print,
      writeErr: printError,
      outputError: (text, write) => write(wordedError(text)),
    })
    .addHelpText(
      "after",
      `
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
  registerExport(program, context);
  registerBackup(program, context);
  return program;
}

/** Rewords the errors of the command-line parser in the style of this CLI, such as "the port '99999' is not valid". */
const wordedError = (text: string): string =>
  text
    .replace(/^error: /, "holdfast: ")
    .replace(/command-argument value '(.*)' is invalid for argument '([^']*)'/s, "the $2 '$1' is not valid")
    .replace(
      /option '(?:-\w, )?(--[\w-]+)[^']*' argument '(.*)' is invalid/s,
      "the value '$2' of $1 is not valid",
    );

/**
 * Returns how a list shows a command: without `[options]`, which every command has, so that the descriptions fit beside
 * it.
 */
const subcommandTerm = (command: Command) => new Help().subcommandTerm(command).replace(" [options]", "");
