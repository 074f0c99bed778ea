import {
  chmodSync,
  closeSync,
  fsyncSync,
  openSync,
  readdirSync,
  renameSync,
  rmSync,
  statfsSync,
} from "node:fs";
import { basename, dirname, join } from "node:path";
import type { DatabaseSync } from "node:sqlite";
import { type DatabaseCopy, NoRoomForCopy } from "./errors.ts";

/**
 * An upgrade of the schema: its versions before and after, and the path of the copy that was made of the database
 * before the upgrade.
 */
export interface Upgrade {
  from: number;
  to: number;
  copy: string;
}

/** Maximum number of copies, made before upgrades, that are kept. Older ones are removed. */
const COPIES_MAX = 3;
/** Free disk space that must be left after the copy, for the upgrade itself. */
const LEFT_FREE_BYTES = 32 * 1_048_576;

/**
 * Copies the database before its schema is upgraded. Resolves when the copy is complete and on disk under its final
 * name. Rejects with `NoRoomForCopy` if the disk has no room for it.
 */
export async function keepCopy(
  database: DatabaseSync,
  path: string,
  version: number,
  now: number,
): Promise<string> {
  const directory = dirname(path);
  requireRoom(database, directory);
  const time = new Date(now).toISOString().replaceAll(/[-:]|\.\d+/g, "");
  const copy = `${path}.schema-${version}.${time}`;
  const draft = `${path}.copy.partial`;
  rmSync(draft, { force: true });
  // The copy contains the hashes of keys and callers' environment variables: only the server may read it.
  closeSync(openSync(draft, "wx", 0o600));
  database.prepare("VACUUM INTO ?").run(draft);
  chmodSync(draft, 0o600);
  sync(draft);
  renameSync(draft, copy);
  sync(directory);
  for (const old of copiesOf(path).slice(COPIES_MAX)) rmSync(old.path, { force: true });
  return copy;
}

/** Lists the copies of a database that were made before upgrades, newest first. */
export function copiesOf(path: string): DatabaseCopy[] {
  const name = basename(path);
  return readdirSync(dirname(path))
    .flatMap((file) => {
      const found = /^\.schema-(\d+)\.(\d{8}T\d{6}Z)$/.exec(
        file.startsWith(name) ? file.slice(name.length) : "",
      );
      if (found === null) return [];
      return [{ path: join(dirname(path), file), version: Number(found[1]), at: found[2] ?? "" }];
    })
    .sort((a, b) => (a.at < b.at ? 1 : -1))
    .map(({ path: copy, version }) => ({ path: copy, version }));
}

function requireRoom(database: DatabaseSync, directory: string): void {
  const pragma = (name: string) => Number(database.prepare(`PRAGMA ${name}`).get()?.[name]);
  const needed = pragma("page_count") * pragma("page_size") + LEFT_FREE_BYTES;
  const { bavail, bsize } = statfsSync(directory);
  if (bavail * bsize < needed) throw new NoRoomForCopy(needed, bavail * bsize);
}

function sync(path: string): void {
  const descriptor = openSync(path, "r");
  try {
    fsyncSync(descriptor);
  } finally {
    closeSync(descriptor);
  }
}
