import { mkdtemp, readFile, rm, stat } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { openStore } from "@holdfast/store";
import { afterEach, beforeEach, expect, test } from "vitest";
import { ensureAdminKey } from "./admin-key.ts";

let dir = "";
beforeEach(async () => {
  dir = await mkdtemp(join(tmpdir(), "holdfast-key-"));
});
afterEach(() => rm(dir, { recursive: true }));

test("the first start creates a key readable only by its owner, and later starts keep it", async () => {
  const store = await openStore({ path: join(dir, "holdfast.db") });
  const first = await ensureAdminKey(dir, store.keys);
  expect(first.isNew).toBe(true);
  expect((await stat(first.file)).mode & 0o777).toBe(0o600);
  expect((await readFile(first.file, "utf8")).trim()).toBe(first.secret);
  expect(await store.keys.findKey(first.secret)).not.toBeNull();
  const second = await ensureAdminKey(dir, store.keys);
  expect(second).toEqual({ ...first, isNew: false });
  await store.close();
});

test("the secret is not in the database", async () => {
  const path = join(dir, "holdfast.db");
  const store = await openStore({ path });
  const { secret } = await ensureAdminKey(dir, store.keys);
  await store.close();
  expect((await readFile(path)).includes(secret)).toBe(false);
});

test("a deleted key file means a new key, and the old key is revoked", async () => {
  const store = await openStore({ path: join(dir, "holdfast.db") });
  const lost = await ensureAdminKey(dir, store.keys);
  await rm(lost.file);
  const fresh = await ensureAdminKey(dir, store.keys);
  expect(fresh.isNew).toBe(true);
  expect(await store.keys.findKey(lost.secret)).toBeNull();
  expect(await store.keys.findKey(fresh.secret)).not.toBeNull();
  await store.close();
});
