import { readFile, rename, writeFile } from "node:fs/promises";
import { join } from "node:path";

interface AdminKeys {
  createKey(name: string): Promise<string>;
  findKey(secret: string): Promise<unknown>;
  revokeKeys(name: string): Promise<number>;
}

const NAME = "admin";

/**
 * Ensures that the state directory contains a file with a working admin key. The file is the only copy of the secret.
 * If the file is missing, or the server does not know the key in it, the old key is revoked and a new one is created.
 * To rotate the key, delete the file and restart the server.
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
