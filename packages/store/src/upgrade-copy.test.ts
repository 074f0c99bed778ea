import { copyFileSync, readdirSync, rmSync, statSync } from "node:fs";
import { basename, dirname } from "node:path";
import { DatabaseSync } from "node:sqlite";
import { expect, test } from "vitest";
import { NewerDatabase } from "./errors.ts";
import { openStore, prepareStore } from "./store.ts";
import { sampleSandbox } from "./testing/samples.ts";
import { temporaryStore } from "./testing/store.ts";
import { copiesOf } from "./upgrade-copy.ts";

const versionIn = (path: string): string => {
  const database = new DatabaseSync(path, { readOnly: true });
  const row = database.prepare("SELECT value FROM meta WHERE key = 'schema_version'").get();
  database.close();
  return String(row?.value);
};

/** Turns a database into one of the version before processes. */
function age(path: string): void {
  const database = new DatabaseSync(path);
  database.exec("DROP TABLE processes; UPDATE meta SET value = '8' WHERE key = 'schema_version'");
  database.close();
}

async function aged(): Promise<{ path: string; record: ReturnType<typeof sampleSandbox> }> {
  const { store, path } = await temporaryStore();
  const record = sampleSandbox();
  await store.commit({ changes: [{ kind: "sandbox.insert", record }] });
  await store.close();
  age(path);
  return { path, record };
}

test("a database that was only prepared keeps its version, and the earlier version can open it", async () => {
  const { path } = await aged();
  const prepared = await prepareStore({ path });
  await prepared.close();
  expect(versionIn(path)).toBe("8");
  expect(copiesOf(path)).toEqual([]);
});

test("an upgrade keeps a private copy from before, which can take the place of the database", async () => {
  const { path, record } = await aged();
  const upgrades: unknown[] = [];
  const store = await openStore({ path, onUpgrade: (upgrade) => upgrades.push(upgrade) });
  const [copy] = copiesOf(path);
  expect(upgrades).toEqual([{ from: 8, to: 9, copy: copy?.path }]);
  expect(statSync(copy?.path ?? "").mode & 0o777).toBe(0o600);
  await store.close();
  expect([versionIn(path), versionIn(copy?.path ?? "")]).toEqual(["9", "8"]);
  for (const suffix of ["-wal", "-shm"]) rmSync(`${path}${suffix}`, { force: true });
  copyFileSync(copy?.path ?? "", path);
  const { store: again } = await temporaryStore({ path });
  expect(await again.sandbox(record.id)).toEqual(record);
  expect(again.installation).toBe(store.installation);
});

test("neither a new database nor one of the present version is copied", async () => {
  const { store, path } = await temporaryStore();
  await store.close();
  await (await openStore({ path })).close();
  expect(copiesOf(path)).toEqual([]);
});

test("at most three copies are kept, the newest", async () => {
  const { path } = await aged();
  for (let day = 1; day <= 5; day++) {
    const store = await openStore({ path, now: () => Date.UTC(2030, 0, day) });
    await store.close();
    age(path);
  }
  expect(copiesOf(path).map((copy) => basename(copy.path))).toEqual(
    ["05", "04", "03"].map((day) => `holdfast.db.schema-8.203001${day}T000000Z`),
  );
  expect(readdirSync(dirname(path)).filter((name) => name.includes("partial"))).toEqual([]);
});

test("a newer database is refused with both ways out: the newer version, and the copy from before", async () => {
  const { path } = await aged();
  await (await openStore({ path })).close();
  const database = new DatabaseSync(path);
  database.exec("UPDATE meta SET value = '999' WHERE key = 'schema_version'");
  database.close();
  const refusal = await openStore({ path }).catch((error: unknown) => error);
  expect(refusal).toBeInstanceOf(NewerDatabase);
  expect((refusal as NewerDatabase).fix).toContain(copiesOf(path)[0]?.path);
  expect((refusal as NewerDatabase).fix).toContain("newer version");
});
