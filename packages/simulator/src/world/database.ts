import { DatabaseSync, type SQLInputValue, type StatementSync } from "node:sqlite";
import { invariant } from "@holdfast/contract";
import { type OpenedStore, openStore } from "@holdfast/store";

type Row = Record<string, SQLInputValue>;
/** Every row of every table. */
export type Snapshot = ReadonlyMap<string, readonly Row[]>;

const NO_LIMIT_PAGES = 1_073_741_823;

/**
 * The real store on a database in memory, with a hand on the database itself: it is emptied between two simulations,
 * which is a hundred times cheaper than making it, put back to an earlier state by a power cut, and filled up.
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
    const { opened, database } = await caught(() =>
      openStore({ path: ":memory:", onUnreadable: () => undefined }),
    );
    compileOnce(database);
    return new SimulatedDatabase(opened, database);
  }

  /** As it was when it was made. */
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

  /** From now on the database can't grow: what needs a new page fails as on a full disk. */
  fill(): void {
    this.#database.exec("VACUUM");
    const pages = this.#database.prepare("PRAGMA page_count").get()?.page_count;
    this.#database.exec(`PRAGMA max_page_count = ${Number(pages)}`);
  }

  free(): void {
    this.#database.exec(`PRAGMA max_page_count = ${NO_LIMIT_PAGES}`);
  }

  /** Writes something into a record that does not belong there. */
  bend(id: string, column: "lease" | "spec", raw: string): void {
    this.#database.prepare(`UPDATE sandboxes SET ${column} = ? WHERE id = ?`).run(raw, id);
  }

  bendDrive(id: string, raw: string): void {
    this.#database.prepare("UPDATE drives SET labels = ? WHERE id = ?").run(raw, id);
  }

  sandboxIds(): Set<string> {
    return new Set(this.ask("SELECT id FROM sandboxes").map(({ id }) => String(id)));
  }

  /** A question to the database itself, past the store. */
  ask(sql: string): Row[] {
    return this.#database.prepare(sql).all() as Row[];
  }

  close(): Promise<void> {
    return this.store.close();
  }
}

/** The same few statements are run in every schedule, thousands of times: each is compiled once. */
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

/** The store keeps its connection to itself, and it is right to. The one that it opens is caught on the way. */
async function caught<Result>(open: () => Promise<Result>) {
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
