import { type InstallationId, newInstallationId } from "@holdfast/contract";
import type { Store } from "@holdfast/engine";
import type { Kysely } from "kysely";
import { CommitQueue } from "./commits.ts";
import type { UnreadableRecord } from "./errors.ts";
import { createKeyStore, type KeyStore } from "./keys.ts";
import { migrate } from "./migrations.ts";
import { createReader } from "./reader.ts";
import { openDatabase, queryBuilder } from "./sqlite.ts";
import type { Tables } from "./tables.ts";
import { createWriter } from "./writer.ts";

export interface StoreOptions {
  /** A file, or `:memory:`. */
  path: string;
  /** Told of every record that a listing had to leave out. Default: a process warning. */
  onUnreadable?: (error: UnreadableRecord) => void;
  now?: () => number;
}

export interface OpenedStore extends Store {
  /** Made when the database is, and the same ever after: the first half of every marker. */
  readonly installation: InstallationId;
  readonly keys: KeyStore;
  /** Writes what was handed in, then closes. */
  close(): Promise<void>;
}

export async function openStore(options: StoreOptions): Promise<OpenedStore> {
  const { path, onUnreadable = (error) => process.emitWarning(error), now = Date.now } = options;
  const database = openDatabase(path);
  try {
    const db = queryBuilder(database);
    await migrate(db);
    const installation = await readInstallation(db);
    const commits = new CommitQueue(database, createWriter(database, db));
    return {
      ...createReader(database, db, onUnreadable),
      installation,
      keys: createKeyStore(database, db, now),
      commit: (commit) => commits.add(commit),
      async close() {
        commits.close();
        if (database.isOpen) database.close();
      },
    };
  } catch (error) {
    database.close();
    throw error;
  }
}

async function readInstallation(db: Kysely<Tables>): Promise<InstallationId> {
  await db
    .insertInto("meta")
    .values({ key: "installation", value: newInstallationId() })
    .onConflict((conflict) => conflict.column("key").doNothing())
    .execute();
  const row = await db
    .selectFrom("meta")
    .select("value")
    .where("key", "=", "installation")
    .executeTakeFirstOrThrow();
  return row.value as InstallationId;
}
