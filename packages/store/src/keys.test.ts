import { DatabaseSync } from "node:sqlite";
import { expect, test } from "vitest";
import { temporaryStore } from "./testing/store.ts";

test("a key is found only by its secret", async () => {
  const { store } = await temporaryStore({ now: () => 42 });
  const secret = await store.keys.createKey("admin");
  expect(secret).toMatch(/^hf_[0-9a-z]{40}$/);
  const key = { name: "admin", createdAt: 42, lastFour: secret.slice(-4) };
  expect(await store.keys.findKey(secret)).toEqual(key);
  for (const wrong of ["", "hf_", secret.slice(0, -1), `${secret}x`, secret.toUpperCase(), "admin"]) {
    expect(await store.keys.findKey(wrong)).toBeNull();
  }
});

test("the secret is not in the database", async () => {
  const { store, path } = await temporaryStore();
  const secret = await store.keys.createKey("admin");
  const database = new DatabaseSync(path);
  const rows = database.prepare("SELECT * FROM api_keys").all();
  database.close();
  expect(rows).toHaveLength(1);
  expect(JSON.stringify(rows)).not.toContain(secret.slice(3));
});

test("a revoked key is not found", async () => {
  const { store } = await temporaryStore();
  const [old, other] = [await store.keys.createKey("admin"), await store.keys.createKey("ci")];
  expect(await store.keys.revokeKeys("admin")).toBe(1);
  expect(await store.keys.revokeKeys("admin")).toBe(0);
  expect(await store.keys.findKey(old)).toBeNull();
  expect(await store.keys.findKey(other)).toMatchObject({ name: "ci" });
});
