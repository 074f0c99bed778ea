import { spawn } from "node:child_process";
import { existsSync, readFileSync } from "node:fs";
import { isAbsolute, join, resolve } from "node:path";
import { createInterface } from "node:readline";
import { fileURLToPath } from "node:url";
import { type Backup, type Holdfast, stateDirectory } from "@holdfast/sdk";
import type { Command } from "commander";
import type { Context } from "../../context.ts";
import { EXIT, Failure } from "../../failure.ts";
import { withSpinner } from "../../output/spinner.ts";
import { print, printError } from "../../output/streams.ts";
import { asJson, counted, table } from "../../output/table.ts";

/** The program that takes backups without a server, and restores them. It runs as root on the server's machine. */
const OFFLINE = fileURLToPath(new URL("../../../../daemon/src/offline.ts", import.meta.url));
const POLL_MS = 500;

interface Restored {
  directory: string;
  installation: string;
  sandboxes: { id: string; name: string; state: string; reason: string | null }[];
  drives: { id: string; name: string; reason: string | null }[];
}

export function registerBackup(program: Command, context: Context): void {
  program
    .command("backup")
    .summary("back up the whole installation to a directory")
    .argument("<directory>", "a directory on the server's machine that does not exist or is empty")
    .option("--json", "print the result as JSON")
    .description(
      "Copies all sandboxes with their files, checkpoints, drives, images, records and keys. The server keeps running. It " +
        "freezes each running sandbox while it copies its files, and copies a sandbox in standby with its memory. If no " +
        "server is running, the command starts one for the time of the backup.\n\n" +
        "Exits 1 if a sandbox or drive could not be copied; the backup contains all others.",
    )
    .addHelpText("after", "\nExamples:\n  holdfast backup /mnt/backups/monday")
    .action(async (directory: string, { json }: { json?: boolean }) => {
      const path = isAbsolute(directory) ? directory : resolve(directory);
      const backup = isServerStopped()
        ? await offline<Backup>(["backup", path])
        : await online(context, context.client(), path);
      print(json ? asJson(backup) : textOf(backup));
      if (backup.state === "failed") throw new Failure(`the backup failed: ${backup.error}`);
      if (backup.state === "incomplete") context.exitCode = EXIT.failed;
    });

  program
    .command("restore")
    .summary("restore a backup into a new state directory")
    .argument("<backup>", "a directory made by 'holdfast backup', or a copied state directory")
    .argument("<directory>", "the new state directory; it does not exist or is empty")
    .option("--json", "print the result as JSON")
    .description(
      "Restores a backup into a new state directory, which gets its own installation id. A server that uses the new " +
        "directory touches nothing of the original installation, even on the same host. The backup is not changed.\n\n" +
        "The restored sandboxes are in standby. The first call wakes a sandbox: with its memory if the backup contains it and " +
        "it fits this host, otherwise by a cold start on its files.\n\n" +
        "To repeat an interrupted restore, run the same command again. Needs root.",
    )
    .addHelpText(
      "after",
      "\nExamples:\n  holdfast restore /mnt/backups/monday /var/lib/holdfast-restored\n" +
        "  HOLDFAST_DIR=/var/lib/holdfast-restored HOLDFAST_PORT=4751 npm start",
    )
    .action(async (backup: string, directory: string, { json }: { json?: boolean }) => {
      const restored = await offline<Restored>(["restore", resolve(backup), resolve(directory)]);
      print(json ? asJson(restored) : restoredText(restored));
      if ([...restored.sandboxes, ...restored.drives].some(({ reason }) => reason !== null))
        context.exitCode = EXIT.failed;
    });
}

/**
 * Whether the server of this machine's state directory is stopped. Returns false if HOLDFAST_URL selects another
 * server.
 */
function isServerStopped(): boolean {
  if (process.env.HOLDFAST_URL) return false;
  const file = join(stateDirectory(), "server.json");
  if (!existsSync(file)) return true;
  try {
    const { pid } = JSON.parse(readFileSync(file, "utf8")) as { pid: number };
    process.kill(pid, 0);
    return false;
  } catch (error) {
    return (error as NodeJS.ErrnoException).code === "ESRCH";
  }
}

async function online(context: Context, client: Holdfast, path: string): Promise<Backup> {
  const { signal } = context.interruption;
  let backup = await client.backup(path, { signal });
  await withSpinner("backing up", async (progress) => {
    while (backup.state === "running") {
      progress.update(`backing up: ${contentOf(backup)}`);
      await new Promise((done) => setTimeout(done, POLL_MS));
      signal.throwIfAborted();
      backup = (await client.lastBackup({ signal })) ?? backup;
    }
  });
  return backup;
}

const contentOf = ({ sandboxes, drives, sizeBytes }: Backup): string =>
  `${counted(sandboxes, "sandbox", "sandboxes")}, ${counted(drives, "drive")}, ${Math.round(sizeBytes / 1_048_576)} MB`;

function textOf(backup: Backup): string {
  if (backup.state === "failed") return "";
  const done = `Backed up ${contentOf(backup)} to ${backup.directory}.\n`;
  if (backup.skipped.length === 0) return done;
  const rows = backup.skipped.map(({ kind, name, reason }) => [kind, name, reason]);
  return `${done}Not in the backup:\n${table(["KIND", "NAME", "REASON"], rows)}\n`;
}

function restoredText({ directory, installation, sandboxes, drives }: Restored): string {
  const rows = [
    ...sandboxes.map(({ id, name, state, reason }) => [
      id,
      name,
      reason === null ? state : `${state}: ${reason}`,
    ]),
    ...drives.map(({ id, name, reason }) => [
      id,
      name,
      reason === null ? "restored" : `not restored: ${reason}`,
    ]),
  ];
  const listed = rows.length === 0 ? "" : `${table(["ID", "NAME", "STATE"], rows)}\n`;
  const what = `${counted(sandboxes.length, "sandbox", "sandboxes")} and ${counted(drives.length, "drive")}`;
  return `${listed}Restored ${what} to ${directory}, as installation ${installation}.\nStart a server on it with HOLDFAST_DIR=${directory}.\n`;
}

/**
 * Runs the offline program. Its result is JSON, and its messages go to stderr as they are, except for the log of the
 * server that it may start: that log is JSON, one line per entry.
 */
async function offline<Result>(args: readonly string[]): Promise<Result> {
  const child = spawn(process.execPath, [OFFLINE, ...args], { stdio: ["ignore", "pipe", "pipe"] });
  createInterface({ input: child.stderr }).on("line", (line) => {
    if (!line.startsWith("{")) printError(`${line}\n`);
  });
  let text = "";
  child.stdout.setEncoding("utf8").on("data", (chunk: string) => (text += chunk));
  const code = await new Promise<number>((done, failed) => {
    child.once("error", failed);
    child.once("close", (status) => done(status ?? EXIT.failed));
  });
  const line = text.trim().split("\n").at(-1) ?? "";
  if (code !== 0 && line === "") throw new Failure(`the ${args[0]} was not completed`);
  return JSON.parse(line) as Result;
}
