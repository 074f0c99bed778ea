import { createHash, timingSafeEqual } from "node:crypto";
import type { DatabaseSync } from "node:sqlite";
import { randomText } from "@holdfast/contract";
import type { Kysely, Selectable } from "kysely";
import { prepare } from "./sqlite.ts";
import type { KeyTable, Tables } from "./tables.ts";

export interface ApiKey {
  name: string;
  createdAt: number;
  /** The last characters of the key, by which people recognise it. They are too few to guess the key from. */
  lastFour: string;
}

export interface KeyStore {
  /**
   * Creates a key and returns its secret. The secret is never returned again, because the store keeps only its hash.
   */
  createKey(name: string): Promise<string>;
  findKey(secret: string): Promise<ApiKey | null>;
  /** Revokes all keys of that name. Returns how many there were. */
  revokeKeys(name: string): Promise<number>;
}

const PREFIX = "hf_";
/**
 * Number of random characters in a key. 36^40 possibilities are over 200 bits, too many to try them all, so a slow hash
 * would add no security.
 */
const RANDOM_CHARACTERS = 40;

const hashOf = (secret: string): string => createHash("sha256").update(secret).digest("hex");

const asKey = (row: Selectable<KeyTable>): ApiKey => ({
  name: row.name,
  createdAt: row.created_at,
  lastFour: row.last_four,
});

export function createKeyStore(database: DatabaseSync, db: Kysely<Tables>, now: () => number): KeyStore {
  const byHash = prepare<{ hash: string }, Selectable<KeyTable>>(database, (slot) =>
    db.selectFrom("api_keys").selectAll().where("hash", "=", slot("hash")),
  );
  return {
    async createKey(name) {
      const secret = PREFIX + randomText(RANDOM_CHARACTERS);
      const row = { hash: hashOf(secret), name, last_four: secret.slice(-4), created_at: now() };
      await db.insertInto("api_keys").values(row).execute();
      return secret;
    },
    // The index lookup does not take constant time. But its duration depends only on the hash, and a caller cannot
    // choose a secret whose hash is close to a stored one. The duration therefore reveals nothing about stored keys.
    async findKey(secret) {
      const hash = hashOf(secret);
      const row = byHash.get({ hash });
      if (row === undefined || !timingSafeEqual(Buffer.from(row.hash), Buffer.from(hash))) return null;
      return asKey(row);
    },
    async revokeKeys(name) {
      const result = await db.deleteFrom("api_keys").where("name", "=", name).executeTakeFirst();
      return Number(result.numDeletedRows);
    },
  };
}
