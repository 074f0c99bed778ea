import { mkdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { DatabaseSync } from "node:sqlite";
import { DirectoryHeld } from "./errors.ts";
import { isBusy } from "./sqlite.ts";

export interface DirectoryHold {
  release(): void;
}

/** Keeps the connections of all holds reachable: one that is garbage-collected is closed, and its lock with it. */
const held = new Set<DatabaseSync>();

/**
 * Makes this process the only server of a state directory. The hold is a write transaction that stays open on a
 * database of its own, so it is the kernel that drops it when the process ends, however it ends: there is no stale
 * lock to judge. The file with the pid beside it is for the message only; nothing is decided by it.
 */
export function holdStateDirectory(directory: string): DirectoryHold {
  mkdirSync(directory, { recursive: true, mode: 0o700 });
  const pidFile = join(directory, "lock.pid");
  const database = new DatabaseSync(join(directory, "lock.db"), { timeout: 0 });
  try {
    // Nothing is ever written, and on a full disk there is no room for the file that would undo it.
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

/** A disk without room for it keeps no server from starting: starting is how room is made. */
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
