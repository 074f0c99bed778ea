/** Takes a backup of an installation whose server is stopped, and restores backups. Called by the command line. */
import { resolve } from "node:path";
import { systemClock } from "@holdfast/engine";
import { createLogger } from "@holdfast/server";
import { restoreBackup } from "./backup/restore-backup.ts";
import { readConfig } from "./config.ts";
import { startServer } from "./main.ts";
import { printResult } from "./print-result.ts";
import { explain, StartFailure } from "./start-failure.ts";

const HOW_OFTEN_MS = 500;

async function main([verb, ...rest]: readonly string[]): Promise<void> {
  const [first, second] = rest;
  if (verb === "backup" && first !== undefined) return backUp(resolve(first));
  if (verb === "restore" && first !== undefined && second !== undefined)
    return restore(resolve(first), resolve(second));
  throw new StartFailure("usage: backup DIRECTORY, or restore BACKUP DIRECTORY", "Name the directories.");
}

/**
 * Takes a backup with a server that is started, on a free port, only for this purpose. A server is needed because
 * sandboxes may be running without one.
 */
async function backUp(directory: string): Promise<void> {
  const config = readConfig(process.env, { uid: process.getuid?.() ?? 0, isTerminal: true });
  const log = createLogger({ level: "warn" });
  const server = await startServer({ ...config, host: "127.0.0.1", port: 0 }, log);
  let backup = server.backups.begin(directory);
  try {
    while (backup.state === "running") {
      await new Promise((done) => setTimeout(done, HOW_OFTEN_MS));
      backup = server.backups.last() ?? backup;
    }
  } finally {
    await server.close();
  }
  await printResult(backup);
  if (backup.state === "failed") process.exitCode = 1;
}

async function restore(from: string, to: string): Promise<void> {
  if (process.getuid?.() !== 0) throw new StartFailure("A restore must run as root.", "Run it with sudo.");
  const ended = new AbortController();
  for (const signal of ["SIGINT", "SIGTERM"] as const)
    process.once(signal, () =>
      ended.abort(new StartFailure("The restore was interrupted.", "Run it again.")),
    );
  const print = (line: string) => process.stderr.write(`${line}\n`);
  const restored = await restoreBackup({ from, to, clock: systemClock }, print, ended.signal);
  await printResult({ directory: to, ...restored });
}

if (import.meta.main) {
  main(process.argv.slice(2)).then(
    () => process.exit(),
    (error: unknown) => {
      const { message, fix } = explain(error);
      process.stderr.write(`holdfast: ${message}\nFix: ${fix}\n`);
      process.exit(1);
    },
  );
}
