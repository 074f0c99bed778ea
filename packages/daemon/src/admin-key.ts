import { readFile, rename, writeFile } from "node:fs/promises";
import { join } from "node:path";

export interface AdminKeys {
  createKey(name: string): Promise<string>;
  findKey(secret: string): Promise<unknown>;
  revokeKeys(name: string): Promise<number>;
}

const NAME = "admin";

/**
 * Makes sure that whoever may read the state directory has a key that works. The file is the only copy of the secret;
 * without it, or with one that is not known, the old key is revoked and a new one made, so removing the file and
 * restarting is how the key is changed.
 */
export async function ensureAdminKey(
  stateDir: string,
  keys: AdminKeys,
): Promise<{ file: string; secret: string; isNew: boolean }> {
  const file = join(stateDir, "admin.key");
  const kept = await readFile(file, "utf8").then(
    (text) => text.trim(),
    () => "",
  );
  if (kept !== "" && (await keys.findKey(kept))) return { file, secret: kept, isNew: false };
  await keys.revokeKeys(NAME);
  const secret = await keys.createKey(NAME);
  const fresh = `${file}.${process.pid}`;
  await writeFile(fresh, `${secret}\n`, { mode: 0o600 });
  await rename(fresh, file);
  return { file, secret, isNew: true };
}
