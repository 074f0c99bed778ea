import { closeSync, openSync } from "node:fs";
import { backup, DatabaseSync, type SQLInputValue } from "node:sqlite";
import type { InstallationId, SandboxId } from "@holdfast/contract";

/** Tables in which every row belongs to one sandbox. Next to each table is the column with the sandbox's id. */
const OF_SANDBOX = [
  ["sandboxes", "id"],
  ["execs", "sandbox_id"],
  ["processes", "sandbox_id"],
  ["previews", "sandbox_id"],
  ["checkpoints", "sandbox_id"],
] as const;

/** A consistent copy of the database in one file. */
export interface Snapshot {
  /**
   * Replaces the copied rows of a sandbox with its current rows, so that they match a copy of the sandbox's files that
   * is made at the same moment.
   */
  refresh(id: SandboxId): void;
  close(): void;
}

/** Copies the database to a new file. Other connections may use the database meanwhile. */
export async function takeSnapshot(database: DatabaseSync, path: string): Promise<Snapshot> {
  // The copy contains the hashes of keys and callers' environment variables: only the server may read it.
  closeSync(openSync(path, "wx", 0o600));
  await backup(database, path);
  const copy = new DatabaseSync(path, { enableForeignKeyConstraints: false });
  // The copy must be a single file. With a write-ahead log it would be two.
  copy.exec("PRAGMA journal_mode = DELETE; PRAGMA synchronous = FULL");
  return {
    refresh: (id) => refresh(database, copy, id),
    close: () => copy.close(),
  };
}

function refresh(database: DatabaseSync, copy: DatabaseSync, id: SandboxId): void {
  copy.exec("BEGIN IMMEDIATE");
  try {
    for (const [table, column] of OF_SANDBOX) {
      copy.prepare(`DELETE FROM ${table} WHERE ${column} = ?`).run(id);
      const rows = database.prepare(`SELECT * FROM ${table} WHERE ${column} = ?`).all(id);
      for (const row of rows) insert(copy, table, row as Record<string, SQLInputValue>);
    }
    copy.exec("COMMIT");
  } catch (error) {
    copy.exec("ROLLBACK");
    throw error;
  }
}

function insert(copy: DatabaseSync, table: string, row: Record<string, SQLInputValue>): void {
  const columns = Object.keys(row);
  const slots = columns.map(() => "?").join(", ");
  copy
    .prepare(`INSERT OR REPLACE INTO ${table} (${columns.join(", ")}) VALUES (${slots})`)
    .run(...Object.values(row));
}

/** Reads the installation id of a database, without upgrading its schema. No server may use the database meanwhile. */
export function readInstallation(path: string): InstallationId | null {
  const database = new DatabaseSync(path);
  try {
    const row = database.prepare("SELECT value FROM meta WHERE key = 'installation'").get();
    return typeof row?.value === "string" ? (row.value as InstallationId) : null;
  } catch {
    return null;
  } finally {
    database.close();
  }
}

/** Replaces the installation id of a database. No server may use the database meanwhile. */
export function renameInstallation(path: string, id: InstallationId): void {
  const database = new DatabaseSync(path);
  try {
    database.prepare("UPDATE meta SET value = ? WHERE key = 'installation'").run(id);
  } finally {
    database.close();
  }
}
