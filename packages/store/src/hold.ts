import { mkdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { DatabaseSync } from "node:sqlite";
import { DirectoryHeld } from "./errors.ts";
import { isBusy } from "./sqlite.ts";

export interface DirectoryHold {
  release(): void;
}

/**
 * Keeps the connections of all holds reachable. A connection that is garbage-collected is closed and loses its lock.
 */
const held = new Set<DatabaseSync>();

/**
 * Makes this process the only server of a state directory. The hold is an open write transaction on a separate
 * database. The kernel releases it when the process ends for any reason, so there are no stale locks. The pid file
 * beside the database is used only for error messages.
 */
export function holdStateDirectory(directory: string): DirectoryHold {
  mkdirSync(directory, { recursive: true, mode: 0o700 });
  const pidFile = join(directory, "lock.pid");
  const database = new DatabaseSync(join(directory, "lock.db"), { timeout: 0 });
  try {
    // SQLite's rollback journal is kept in memory: on a full disk a journal file could not be created, and none is
    // needed because nothing is ever written to this database.
    database.exec("PRAGMA journal_mode = MEMORY; BEGIN IMMEDIATE");
  } catch (error) {
    database.close();
    throw isBusy(error) ? new DirectoryHeld(directory, readPid(pidFile)) : error;
  }
  held.add(database);
  notePid(pidFile);
  return {
    release() {
      if (!database.isOpen) return;
      rmSync(pidFile, { force: true });
      database.close();
      held.delete(database);
    },
  };
}

/**
 * Writes the pid file if possible. A full disk must not prevent the server from starting, because the server is needed
 * to free space.
 */
function notePid(file: string): void {
  try {
    writeFileSync(file, `${process.pid}\n`);
  } catch {
    rmSync(file, { force: true });
  }
}

function readPid(file: string): number | null {
  try {
    const pid = Number(readFileSync(file, "utf8"));
    return Number.isSafeInteger(pid) && pid > 0 ? pid : null;
  } catch {
    return null;
  }
}
