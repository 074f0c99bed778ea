import { DatabaseSync, type SQLInputValue, type StatementSync } from "node:sqlite";
import { invariant } from "@holdfast/contract";
import { type OpenedStore, openStore } from "@holdfast/store";

type Row = Record<string, SQLInputValue>;
/** All rows of all tables. */
export type Snapshot = ReadonlyMap<string, readonly Row[]>;

const NO_LIMIT_PAGES = 1_073_741_823;

/**
 * The real store on an in-memory database. The simulator also accesses this database directly. It empties the database
 * between two simulations, which is a hundred times cheaper than creating a new one. It resets the database to an
 * earlier state after a power cut, and it can fill the database up.
 */
export class SimulatedDatabase {
  readonly store: OpenedStore;
  readonly #database: DatabaseSync;
  readonly #fresh: Snapshot;

  private constructor(store: OpenedStore, database: DatabaseSync) {
    this.store = store;
    this.#database = database;
    this.#fresh = this.snapshot();
  }

  static async open(): Promise<SimulatedDatabase> {
    const { opened, database } = await captureConnection(() =>
      openStore({ path: ":memory:", onUnreadable: () => undefined }),
    );
    compileOnce(database);
    return new SimulatedDatabase(opened, database);
  }

  /** Restores the initial content. */
  reset(): void {
    this.free();
    this.restore(this.#fresh);
  }

  snapshot(): Snapshot {
    const tables = this.ask("SELECT name FROM sqlite_master WHERE type = 'table'");
    return new Map(tables.map(({ name }) => [String(name), this.ask(`SELECT * FROM "${name}"`)]));
  }

  restore(snapshot: Snapshot): void {
    const database = this.#database;
    database.exec("BEGIN; PRAGMA defer_foreign_keys = ON");
    for (const [table, rows] of snapshot) {
      database.exec(`DELETE FROM "${table}"`);
      for (const row of rows) {
        const columns = Object.keys(row);
        const sql = `INSERT INTO "${table}" (${columns.join(", ")}) VALUES (${columns.map(() => "?").join(", ")})`;
        database.prepare(sql).run(...Object.values(row));
      }
    }
    database.exec("COMMIT");
  }

  /** Prevents the database from growing. A write that needs a new page then fails, as on a full disk. */
  fill(): void {
    this.#database.exec("VACUUM");
    const pages = this.#database.prepare("PRAGMA page_count").get()?.page_count;
    this.#database.exec(`PRAGMA max_page_count = ${Number(pages)}`);
  }

  free(): void {
    this.#database.exec(`PRAGMA max_page_count = ${NO_LIMIT_PAGES}`);
  }

  /** Writes unreadable content into a sandbox's record. */
  corrupt(id: string, column: "lease" | "spec", raw: string): void {
    this.#database.prepare(`UPDATE sandboxes SET ${column} = ? WHERE id = ?`).run(raw, id);
  }

  corruptDrive(id: string, raw: string): void {
    this.#database.prepare("UPDATE drives SET labels = ? WHERE id = ?").run(raw, id);
  }

  sandboxIds(): Set<string> {
    return new Set(this.ask("SELECT id FROM sandboxes").map(({ id }) => String(id)));
  }

  /** Queries the database directly, bypassing the store. */
  ask(sql: string): Row[] {
    return this.#database.prepare(sql).all() as Row[];
  }

  close(): Promise<void> {
    return this.store.close();
  }
}

/** Caches prepared statements, because every schedule runs the same few statements thousands of times. */
function compileOnce(database: DatabaseSync): void {
  const statements = new Map<string, StatementSync>();
  database.prepare = (sql) => {
    const known = statements.get(sql);
    if (known !== undefined) return known;
    const statement = DatabaseSync.prototype.prepare.call(database, sql);
    statements.set(sql, statement);
    return statement;
  };
}

/** Opens a store, and also returns the database connection that the store opens and keeps private. */
async function captureConnection<Result>(open: () => Promise<Result>) {
  const { prepare } = DatabaseSync.prototype;
  const seen = new Set<DatabaseSync>();
  DatabaseSync.prototype.prepare = function (this: DatabaseSync, sql: string) {
    seen.add(this);
    return prepare.call(this, sql);
  };
  try {
    const opened = await open();
    const [database, ...others] = seen;
    invariant(database !== undefined && others.length === 0, "a store has one connection");
    return { opened, database };
  } finally {
    DatabaseSync.prototype.prepare = prepare;
  }
}
