import { randomBytes } from "node:crypto";
import type { DatabaseSync } from "node:sqlite";
import { type InstallationId, newInstallationId } from "@holdfast/contract";
import type { Store } from "@holdfast/engine";
import type { Kysely } from "kysely";
import { Ballast, FOR_COMMITS_BYTES, FOR_OPENING_BYTES } from "./ballast.ts";
import { CommitQueue } from "./commits.ts";
import type { UnreadableRecord } from "./errors.ts";
import { createKeyStore, type KeyStore } from "./keys.ts";
import { LateFlush } from "./late-flush.ts";
import { migrate } from "./migrations.ts";
import { createReader } from "./reader.ts";
import { IN_MEMORY, isFull, openDatabase, queryBuilder, syncLog } from "./sqlite.ts";
import type { Tables } from "./tables.ts";
import { createWriter } from "./writer.ts";

export interface StoreOptions {
  /** A file, or `:memory:`. */
  path: string;
  /** Told of every record that a listing had to leave out. Default: a process warning. */
  onUnreadable?: (error: UnreadableRecord) => void;
  now?: () => number;
  /** Keeps others from taking the room that is made on a full disk, until what it gives is called. */
  onFull?: () => Promise<() => void>;
}

export interface OpenedStore extends Store {
  /** Made when the database is, and the same ever after: the first half of every marker. */
  readonly installation: InstallationId;
  readonly keys: KeyStore;
  /** Writes what was handed in and makes all of it durable, then closes. */
  close(): Promise<void>;
}

export async function openStore(options: StoreOptions): Promise<OpenedStore> {
  const { path, onUnreadable = (error) => process.emitWarning(error), now = Date.now } = options;
  const ballast = ballastFor(path);
  const { database, db, installation, secret } = await openWithin(path, ballast, options.onFull);
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
    async close() {
      commits.close();
      try {
        await flush.close();
      } finally {
        if (database.isOpen) database.close();
        // The log went with the connection: what it took is set aside before others take it.
        for (const each of ballast.toReversed()) await each.stow();
      }
    },
  };
}

/** The first for commits; the other only for the start of a server, which must find room when commits have used up theirs. */
const ballastFor = (path: string): Ballast[] =>
  path === IN_MEMORY
    ? []
    : [new Ballast(`${path}.ballast`, FOR_COMMITS_BYTES), new Ballast(`${path}.reserve`, FOR_OPENING_BYTES)];

/** On a full disk too: whoever can free it, by deletes, is the server that opens this. */
async function openWithin(
  path: string,
  ballast: readonly Ballast[],
  onFull: StoreOptions["onFull"],
): Promise<Opened> {
  let goOn: (() => void) | undefined;
  try {
    for (;;) {
      try {
        return await open(path);
      } catch (error) {
        if (!isFull(error)) throw error;
        goOn ??= await onFull?.();
        if (!ballast.some((each) => each.drop())) throw error;
      }
    }
  } catch (error) {
    for (const each of ballast) await each.close();
    throw error;
  } finally {
    goOn?.();
  }
}

interface Opened {
  database: DatabaseSync;
  db: Kysely<Tables>;
  installation: InstallationId;
  secret: string;
}

async function open(path: string): Promise<Opened> {
  const database = openDatabase(path);
  try {
    const db = queryBuilder(database);
    await migrate(db);
    const installation = (await once(db, "installation", newInstallationId)) as InstallationId;
    const secret = await once(db, "secret", () => randomBytes(SECRET_BYTES).toString("base64url"));
    return { database, db, installation, secret };
  } catch (error) {
    database.close();
    throw error;
  }
}

/** Made at the first opening, and the same ever after. */
async function once(db: Kysely<Tables>, key: string, make: () => string): Promise<string> {
  const known = await db.selectFrom("meta").select("value").where("key", "=", key).executeTakeFirst();
  if (known !== undefined) return known.value;
  const value = make();
  await db.insertInto("meta").values({ key, value }).execute();
  return value;
}

const SECRET_BYTES = 32;
