/** Everything that is SQLite's own: opening, pragmas, the dialect, prepared statements, error codes. */
import { closeSync, openSync, statSync } from "node:fs";
import { open } from "node:fs/promises";
import { DatabaseSync, type SQLInputValue } from "node:sqlite";
import { invariant } from "@holdfast/contract";
import { type Compilable, Kysely, SqliteDialect } from "kysely";
import type { Tables } from "./tables.ts";

const BUSY_TIMEOUT_MS = 5_000;
const SQLITE_BUSY = 5;
const SQLITE_FULL = 13;
/** Its index of the log could not be given its size. */
const SQLITE_IOERR_SHMSIZE = 4874;
const SQLITE_CONSTRAINT_PRIMARYKEY = 1555;
const SQLITE_CONSTRAINT_UNIQUE = 2067;

export const IN_MEMORY = ":memory:";

/** Opens the one writing connection. By its rule a COMMIT returns once the write-ahead log is on the disk. */
export function openDatabase(path: string): DatabaseSync {
  // Specs hold their callers' environments: the file, and with it its log, is the server's alone.
  if (path !== IN_MEMORY) closeSync(openSync(path, "a", 0o600));
  const database = new DatabaseSync(path, { timeout: BUSY_TIMEOUT_MS, enableForeignKeyConstraints: true });
  try {
    const mode = database.prepare("PRAGMA journal_mode = WAL").get()?.journal_mode;
    invariant(mode === "wal" || path === IN_MEMORY, `the database is in WAL mode, not ${mode}`);
    primeLog(database);
    return database;
  } catch (error) {
    database.close();
    throw error;
  }
}

const LOG_PAGES = 1_000;
const PRIMED_PAGES = LOG_PAGES * 1.1;
/** A page and what the log says of it. */
const LOGGED_BYTES = 4_096 + 24;

/**
 * Gives the write-ahead log its full size at once. A commit then overwrites blocks that the file already has, and
 * making it durable costs the file system half of what growing the file would: every exec pays for two commits. The log
 * is written over from its start at each checkpoint and never shrinks while the database is open. The log of a killed
 * server has its size. On a full disk it gets what there is, and is written over once the database has room to grow.
 */
function primeLog(database: DatabaseSync): void {
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
 * Puts what the write-ahead log holds on the disk, off the event loop: what a COMMIT does that waits for it. SQLite locks
 * its other files by POSIX locks, which the closing of any handle would drop; it never locks this one.
 */
export async function syncLog(database: DatabaseSync): Promise<void> {
  const path = database.isOpen ? database.location() : null;
  if (path === null) return;
  const log = await open(`${path}-wal`).catch((error: NodeJS.ErrnoException) => {
    if (error.code === "ENOENT") return null;
    throw error;
  });
  // Whoever removed it had put all of it into the database before, durably.
  if (log === null) return;
  try {
    await log.datasync();
  } finally {
    await log.close();
  }
}

/** Kysely on `node:sqlite`, whose statements take their parameters one by one and don't say whether they return rows. */
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

/** Stands in a query for a value that is given anew at each run. */
class Slot {
  readonly name: string;
  constructor(name: string) {
    this.name = name;
  }
}

type Slots<Values> = <Name extends keyof Values & string>(name: Name) => Values[Name];

export interface Prepared<Values, Row> {
  /** How many rows it changed. */
  run(values: Values): number;
  get(values: Values): Row | undefined;
}

/** Builds and compiles a query once, for the paths where building it each time would cost more than running it. */
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

/** The columns whose uniqueness an insert or update would have broken, as `table.column`; null for any other error. */
export function uniqueViolation(error: unknown): string | null {
  const code = errorCode(error);
  if (code !== SQLITE_CONSTRAINT_UNIQUE && code !== SQLITE_CONSTRAINT_PRIMARYKEY) return null;
  return (error as Error).message.replace(/^.*failed: /, "");
}
