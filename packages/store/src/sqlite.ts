/** Everything that is specific to SQLite: opening, pragmas, the dialect, prepared statements, error codes. */
import { closeSync, openSync, statSync } from "node:fs";
import { open } from "node:fs/promises";
import { DatabaseSync, type SQLInputValue } from "node:sqlite";
import { invariant } from "@holdfast/contract";
import { type Compilable, Kysely, SqliteDialect } from "kysely";
import type { Tables } from "./tables.ts";

const BUSY_TIMEOUT_MS = 5_000;
const SQLITE_BUSY = 5;
const SQLITE_FULL = 13;
/** SQLite's error code if the shared-memory file of the log could not be resized. */
const SQLITE_IOERR_SHMSIZE = 4874;
const SQLITE_CONSTRAINT_PRIMARYKEY = 1555;
const SQLITE_CONSTRAINT_UNIQUE = 2067;

export const IN_MEMORY = ":memory:";

/** Opens the only connection that writes. By default a COMMIT returns once the write-ahead log is on disk. */
export function openDatabase(path: string): DatabaseSync {
  // Specs contain callers' environment variables, so the database and its log must be readable only by the server.
  if (path !== IN_MEMORY) closeSync(openSync(path, "a", 0o600));
  const database = new DatabaseSync(path, { timeout: BUSY_TIMEOUT_MS, enableForeignKeyConstraints: true });
  try {
    const mode = database.prepare("PRAGMA journal_mode = WAL").get()?.journal_mode;
    invariant(mode === "wal" || path === IN_MEMORY, `the database is in WAL mode, not ${mode}`);
    allocateLog(database);
    return database;
  } catch (error) {
    database.close();
    throw error;
  }
}

const LOG_PAGES = 1_000;
const PRIMED_PAGES = LOG_PAGES * 1.1;
/** Size of a page in the log, including its header. */
const LOGGED_BYTES = 4_096 + 24;

/**
 * Allocates the write-ahead log at its full size. Commits then overwrite existing blocks, which costs the file system
 * half as much as growing the file. The cost matters because every exec takes two commits. SQLite overwrites the log
 * from its start after each of its own checkpoints, and never shrinks it while the database is open. After a server was
 * killed, its log still has the full size. On a full disk the log gets the available space, and is overwritten once the
 * database has room to grow.
 */
function allocateLog(database: DatabaseSync): void {
  const version = database.prepare("PRAGMA user_version").get()?.user_version;
  database.exec("PRAGMA synchronous = OFF; PRAGMA wal_autocheckpoint = 0");
  const touch = database.prepare(`PRAGMA user_version = ${Number(version)}`);
  const missing = PRIMED_PAGES - sizeOf(`${database.location()}-wal`) / LOGGED_BYTES;
  unlessFull(() => {
    for (let page = 0; page < missing; page += 1) touch.run();
  });
  database.exec("PRAGMA synchronous = FULL");
  unlessFull(() => database.exec("PRAGMA wal_checkpoint(RESTART)"));
  database.exec(`PRAGMA wal_autocheckpoint = ${LOG_PAGES}`);
}

const sizeOf = (path: string): number => statSync(path, { throwIfNoEntry: false })?.size ?? 0;

function unlessFull(act: () => void): void {
  try {
    act();
  } catch (error) {
    if (!isFull(error)) throw error;
  }
}

/**
 * Flushes the write-ahead log as a durable COMMIT does, but off the event loop. It opens and closes the log file for
 * the flush. Closing any handle of a file releases all POSIX locks that the process has on the file, which is harmless
 * here because SQLite never locks the log.
 */
export async function syncLog(database: DatabaseSync): Promise<void> {
  const path = database.isOpen ? database.location() : null;
  if (path === null) return;
  const log = await open(`${path}-wal`).catch((error: NodeJS.ErrnoException) => {
    if (error.code === "ENOENT") return null;
    throw error;
  });
  // There is no log, because another process has removed it. That process first wrote the whole log durably to the
  // database, so nothing is left to flush.
  if (log === null) return;
  try {
    await log.datasync();
  } finally {
    await log.close();
  }
}

/**
 * Creates a Kysely instance for `node:sqlite`. It needs an adapter: Kysely passes parameters as a list and asks each
 * statement whether it returns rows, but statements of `node:sqlite` take parameters one by one and do not answer that
 * question.
 */
export function queryBuilder(database: DatabaseSync): Kysely<Tables> {
  const prepare = (sql: string) => {
    const statement = database.prepare(sql);
    const spread = (parameters: readonly unknown[]) => parameters as readonly SQLInputValue[];
    return {
      reader: statement.columns().length > 0,
      all: (parameters: readonly unknown[]) => statement.all(...spread(parameters)),
      run: (parameters: readonly unknown[]) => statement.run(...spread(parameters)),
      iterate: (parameters: readonly unknown[]) => statement.iterate(...spread(parameters)),
    };
  };
  const dialect = new SqliteDialect({ database: { prepare, close: () => database.close() } });
  return new Kysely<Tables>({ dialect });
}

/** Placeholder in a prepared query for a value that is given at each run. */
class Slot {
  readonly name: string;
  constructor(name: string) {
    this.name = name;
  }
}

type Slots<Values> = <Name extends keyof Values & string>(name: Name) => Values[Name];

interface Prepared<Values, Row> {
  /** Runs the statement. Returns the number of changed rows. */
  run(values: Values): number;
  get(values: Values): Row | undefined;
}

/** Builds and compiles a query once. For a frequent query, building it each time would cost more than running it. */
export function prepare<Values extends object, Row = never>(
  database: DatabaseSync,
  build: (slot: Slots<Values>) => Compilable<Row>,
): Prepared<Values, Row> {
  const { sql, parameters } = build((name) => new Slot(name) as never).compile();
  const statement = database.prepare(sql);
  const bind = (values: Values) =>
    parameters.map((parameter) => {
      if (!(parameter instanceof Slot)) return parameter as SQLInputValue;
      return (values as Record<string, SQLInputValue | undefined>)[parameter.name] ?? null;
    });
  return {
    run: (values) => Number(statement.run(...bind(values)).changes),
    get: (values) => statement.get(...bind(values)) as Row | undefined,
  };
}

const errorCode = (error: unknown): number | undefined =>
  error instanceof Error && "errcode" in error && typeof error.errcode === "number"
    ? error.errcode
    : undefined;

export const isFull = (error: unknown): boolean => {
  const code = errorCode(error);
  return code === SQLITE_FULL || code === SQLITE_IOERR_SHMSIZE;
};

export const isBusy = (error: unknown): boolean => errorCode(error) === SQLITE_BUSY;

/** Returns the columns of a violated uniqueness constraint as `table.column`; null for any other error. */
export function uniqueViolation(error: unknown): string | null {
  const code = errorCode(error);
  if (code !== SQLITE_CONSTRAINT_UNIQUE && code !== SQLITE_CONSTRAINT_PRIMARYKEY) return null;
  return (error as Error).message.replace(/^.*failed: /, "");
}
