/** Everything that is SQLite's own: opening, pragmas, the dialect, prepared statements, error codes. */
import { closeSync, openSync } from "node:fs";
import { DatabaseSync, type SQLInputValue } from "node:sqlite";
import { invariant } from "@holdfast/contract";
import { type Compilable, Kysely, SqliteDialect } from "kysely";
import type { Tables } from "./tables.ts";

const BUSY_TIMEOUT_MS = 5_000;
const SQLITE_BUSY = 5;
const SQLITE_CONSTRAINT_PRIMARYKEY = 1555;
const SQLITE_CONSTRAINT_UNIQUE = 2067;

export const IN_MEMORY = ":memory:";

/** Opens the one writing connection. A COMMIT on it returns once the write-ahead log is on the disk. */
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

/**
 * Gives the write-ahead log its full size at once. A commit then overwrites blocks that the file already has, and
 * making it durable costs the file system half of what growing the file would: every exec pays for two commits. The log
 * is written over from its start at each checkpoint and never shrinks while the database is open.
 */
function primeLog(database: DatabaseSync): void {
  const version = database.prepare("PRAGMA user_version").get()?.user_version;
  database.exec("PRAGMA synchronous = OFF; PRAGMA wal_autocheckpoint = 0");
  const touch = database.prepare(`PRAGMA user_version = ${Number(version)}`);
  for (let page = 0; page < LOG_PAGES * 1.1; page += 1) touch.run();
  database.exec(
    `PRAGMA synchronous = FULL; PRAGMA wal_checkpoint(RESTART); PRAGMA wal_autocheckpoint = ${LOG_PAGES}`,
  );
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

export const isBusy = (error: unknown): boolean => errorCode(error) === SQLITE_BUSY;

/** The columns whose uniqueness an insert or update would have broken, as `table.column`; null for any other error. */
export function uniqueViolation(error: unknown): string | null {
  const code = errorCode(error);
  if (code !== SQLITE_CONSTRAINT_UNIQUE && code !== SQLITE_CONSTRAINT_PRIMARYKEY) return null;
  return (error as Error).message.replace(/^.*failed: /, "");
}
