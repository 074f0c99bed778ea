import { randomBytes } from "node:crypto";
import type { DatabaseSync } from "node:sqlite";
import { type InstallationId, newInstallationId } from "@holdfast/contract";
import type { Store } from "@holdfast/engine";
import type { Kysely } from "kysely";
import { Ballast, FOR_COMMITS_BYTES, FOR_OPENING_BYTES } from "./ballast.ts";
import { CommitQueue } from "./commits.ts";
import { NewerDatabase, type UnreadableRecord } from "./errors.ts";
import { createKeyStore, type KeyStore } from "./keys.ts";
import { LateFlush } from "./late-flush.ts";
import { migrate, SCHEMA_VERSION, schemaVersion } from "./migrations.ts";
import { createReader } from "./reader.ts";
import { type Snapshot, takeSnapshot } from "./snapshot.ts";
import { IN_MEMORY, isFull, openDatabase, queryBuilder, syncLog } from "./sqlite.ts";
import type { Tables } from "./tables.ts";
import { copiesOf, keepCopy, type Upgrade } from "./upgrade-copy.ts";
import { createWriter } from "./writer.ts";

export interface StoreOptions {
  /** Path of the database file, or `:memory:`. */
  path: string;
  /** Called for every record that a listing skipped. Default: emits a process warning. */
  onUnreadable?: (error: UnreadableRecord) => void;
  now?: () => number;
  /** Called after the schema was upgraded, with the copy of the database that was made before the upgrade. */
  onUpgrade?: (upgrade: Upgrade) => void;
  /**
   * Called when the disk is full. The callback must keep other writers from using freed space until the store calls the
   * function that the callback has returned.
   */
  onFull?: () => Promise<() => void>;
}

export interface OpenedStore extends Store {
  /** The installation id: created with the database, constant, and the first half of every marker. */
  readonly installation: InstallationId;
  readonly keys: KeyStore;
  /** Copies the database to a new file. The store can be used meanwhile. */
  snapshot(path: string): Promise<Snapshot>;
  /** Writes all pending commits durably, then closes. */
  close(): Promise<void>;
}

/** A database that was opened and examined, but not changed: its schema is not migrated before `open`. */
export interface PreparedStore {
  /** Installation id of the database. If the database is new, the id that `open` will store. */
  readonly installation: InstallationId;
  /**
   * Creates the schema of a new database. If an existing database has an older schema, copies the database and then
   * upgrades the schema. Returns the store.
   */
  open(): Promise<OpenedStore>;
  /** Closes the database without a change. */
  close(): Promise<void>;
}

export const openStore = async (options: StoreOptions): Promise<OpenedStore> =>
  (await prepareStore(options)).open();

/**
 * Opens the database and reads the version of its schema, but does not upgrade the schema yet. A starting server can
 * first create everything else that it needs. If that fails, the earlier version of Holdfast can still open the
 * database.
 */
export async function prepareStore(options: StoreOptions): Promise<PreparedStore> {
  const { path } = options;
  const ballast = ballastFor(path);
  const examined = await openWithin(path, ballast, options.onFull);
  const close = async () => {
    if (examined.database.isOpen) examined.database.close();
    for (const each of ballast) await each.close();
  };
  const open = async () => {
    try {
      return await complete(options, examined, ballast);
    } catch (error) {
      await close();
      throw error;
    }
  };
  return { installation: examined.installation, open, close };
}

async function complete(
  options: StoreOptions,
  examined: Examined,
  ballast: readonly Ballast[],
): Promise<OpenedStore> {
  const { onUnreadable = (error) => process.emitWarning(error), now = Date.now } = options;
  const { database, db, installation } = examined;
  const upgrade = await upgradeSchema(examined, options.path, now());
  if (upgrade !== null) options.onUpgrade?.(upgrade);
  await once(db, "installation", () => installation);
  const secret = await once(db, "secret", () => randomBytes(SECRET_BYTES).toString("base64url"));
  const flush = new LateFlush(() => syncLog(database));
  for (const each of ballast) await each.load();
  const commits = new CommitQueue(database, createWriter(database, db), {
    onRelaxed: () => flush.owe(),
    makeRoom: () => ballast[0]?.drop() ?? false,
  });
  return {
    ...createReader(database, db, onUnreadable),
    installation,
    secret,
    keys: createKeyStore(database, db, now),
    commit: (commit) => commits.add(commit),
    snapshot: (to) => takeSnapshot(database, to),
    async close() {
      commits.close();
      try {
        await flush.close();
      } finally {
        if (database.isOpen) database.close();
        // Closing the connection deleted the log. The reserve files take the freed space before other writers do.
        for (const each of ballast.toReversed()) await each.stow();
      }
    },
  };
}

/** Upgrades the schema. Returns null if the database is new or has the present schema already. */
async function upgradeSchema(
  { database, db, version }: Examined,
  path: string,
  now: number,
): Promise<Upgrade | null> {
  const isUpgrade = version > 0 && version < SCHEMA_VERSION && path !== IN_MEMORY;
  const copy = isUpgrade ? await keepCopy(database, path, version, now) : null;
  await migrate(db);
  return copy === null ? null : { from: version, to: SCHEMA_VERSION, copy };
}

/**
 * Returns the reserve files. The first one makes room for commits. The second one makes room only for starting a server
 * after commits have used up the first one.
 */
const ballastFor = (path: string): Ballast[] =>
  path === IN_MEMORY
    ? []
    : [new Ballast(`${path}.ballast`, FOR_COMMITS_BYTES), new Ballast(`${path}.reserve`, FOR_OPENING_BYTES)];

/** Opens the database, even if the disk is full: the server is needed to free space by deletes. */
async function openWithin(
  path: string,
  ballast: readonly Ballast[],
  onFull: StoreOptions["onFull"],
): Promise<Examined> {
  let resume: (() => void) | undefined;
  try {
    for (;;) {
      try {
        return await examine(path);
      } catch (error) {
        if (!isFull(error)) throw error;
        resume ??= await onFull?.();
        if (!ballast.some((each) => each.drop())) throw error;
      }
    }
  } catch (error) {
    for (const each of ballast) await each.close();
    throw error;
  } finally {
    resume?.();
  }
}

interface Examined {
  database: DatabaseSync;
  db: Kysely<Tables>;
  /** Version of the schema on disk; 0 for a new database. */
  version: number;
  installation: InstallationId;
}

async function examine(path: string): Promise<Examined> {
  const database = openDatabase(path);
  try {
    const db = queryBuilder(database);
    const version = await schemaVersion(db);
    if (version > SCHEMA_VERSION) throw new NewerDatabase(version, SCHEMA_VERSION, copiesOf(path));
    const known = version === 0 ? undefined : await metaValue(db, "installation");
    return { database, db, version, installation: (known ?? newInstallationId()) as InstallationId };
  } catch (error) {
    database.close();
    throw error;
  }
}

const metaValue = async (db: Kysely<Tables>, key: string): Promise<string | undefined> =>
  (await db.selectFrom("meta").select("value").where("key", "=", key).executeTakeFirst())?.value;

/** Returns a stored value that is created on first open and never changes afterwards. */
async function once(db: Kysely<Tables>, key: string, make: () => string): Promise<string> {
  const known = await metaValue(db, key);
  if (known !== undefined) return known;
  const value = make();
  await db.insertInto("meta").values({ key, value }).execute();
  return value;
}

const SECRET_BYTES = 32;
