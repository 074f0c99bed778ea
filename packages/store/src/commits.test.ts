import { spawn } from "node:child_process";
import { once } from "node:events";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { DatabaseSync } from "node:sqlite";
import type { Commit } from "@holdfast/engine";
import { expect, onTestFinished, test } from "vitest";
import { CommitQueue } from "./commits.ts";
import { temporaryDirectory } from "./testing/directory.ts";
import { temporaryStore } from "./testing/store.ts";

const ROWS = "SELECT count(*) AS n FROM t";

/** Creates a queue over a bare table. A second connection counts the transactions, by `data_version`. */
function bareQueue(write?: (database: DatabaseSync, index: number) => void) {
  const path = join(temporaryDirectory(), "bare.db");
  const database = new DatabaseSync(path);
  const watcher = new DatabaseSync(path);
  onTestFinished(() => {
    watcher.close();
    database.close();
  });
  database.exec("PRAGMA journal_mode = WAL; CREATE TABLE t (n INTEGER)");
  let index = 0;
  let relaxed = 0;
  const queue = new CommitQueue(
    database,
    () => {
      database.exec("INSERT INTO t VALUES (1)");
      write?.(database, index++);
    },
    { onRelaxed: () => relaxed++, makeRoom: () => false },
  );
  return { queue, rows: () => watcher.prepare(ROWS).get()?.n, database, relaxed: () => relaxed };
}

test("commits of one turn of the event loop share a transaction, also across callbacks", async () => {
  const seen: unknown[] = [];
  const { queue, rows } = bareQueue(() => seen.push(rows()));
  await Promise.all([
    queue.add({ changes: [] }),
    Promise.resolve().then(() => queue.add({ changes: [] })),
    new Promise<void>((resolve, reject) =>
      process.nextTick(() => queue.add({ changes: [] }).then(resolve, reject)),
    ),
  ]);
  expect(seen).toEqual([0, 0, 0]);
  expect(rows()).toBe(3);
});

test("a commit is acknowledged only once other connections can see it", async () => {
  const { queue, rows } = bareQueue();
  for (let n = 1; n <= 5; n++) {
    await queue.add({ changes: [] });
    expect(rows()).toBe(n);
  }
});

test("a burst larger than a batch is written completely, in order", async () => {
  const order: number[] = [];
  const { queue, rows } = bareQueue();
  await Promise.all(
    Array.from({ length: 1_000 }, (_, index) => queue.add({ changes: [] }).then(() => order.push(index))),
  );
  expect(rows()).toBe(1_000);
  expect(order).toEqual(order.toSorted((a, b) => a - b));
});

test("a transaction that SQLite rolls back fails every commit in it, and the next one works", async () => {
  const { queue, rows } = bareQueue((database, index) => {
    if (index !== 1) return;
    database.exec("ROLLBACK");
    throw new Error("disk full");
  });
  const outcomes = await Promise.allSettled([0, 1, 2].map(() => queue.add({ changes: [] })));
  expect(outcomes.map(({ status }) => status)).toEqual(["rejected", "rejected", "rejected"]);
  expect(rows()).toBe(0);
  await queue.add({ changes: [] });
  expect(rows()).toBe(1);
});

const rule = (database: DatabaseSync) => database.prepare("PRAGMA synchronous").get()?.synchronous;
const [NORMAL, FULL] = [1, 2];

test("a transaction waits for the disk unless all of its commits need to survive only a server crash", async () => {
  const rules: unknown[] = [];
  const { queue, database, relaxed } = bareQueue((during) => rules.push(rule(during)));
  const add = (...outlives: Commit["outlives"][]) =>
    Promise.all(
      outlives.map((each) =>
        queue.add(each === undefined ? { changes: [] } : { changes: [], outlives: each }),
      ),
    );
  await add("server", "server");
  expect(rules.splice(0)).toEqual([NORMAL, NORMAL]);
  expect(relaxed()).toBe(1);
  expect(rule(database)).toBe(FULL);
  await add("server", "host");
  await add("server", undefined);
  expect(rules.splice(0)).toEqual([FULL, FULL, FULL, FULL]);
  expect(relaxed()).toBe(1);
});

test("a relaxed transaction that fails leaves the connection as durable as before", async () => {
  const { queue, database } = bareQueue((during) => {
    during.exec("ROLLBACK");
    throw new Error("disk full");
  });
  await expect(queue.add({ changes: [], outlives: "server" })).rejects.toThrow("disk full");
  expect(rule(database)).toBe(FULL);
});

test.for(["host", "server"])(
  "every commit that outlives the %s and was acknowledged before a kill -9 is there after reopening, and nothing half-written",
  async (outlives) => {
    const path = join(temporaryDirectory(), "holdfast.db");
    const child = spawn(
      process.execPath,
      [join(import.meta.dirname, "testing/committer.ts"), path, outlives],
      { stdio: ["ignore", "pipe", "inherit"] },
    );
    onTestFinished(() => void child.kill("SIGKILL"));
    const exited = once(child, "exit");
    const acknowledged: string[] = [];
    for await (const line of createInterface({ input: child.stdout })) {
      acknowledged.push(line);
      if (acknowledged.length === 500) child.kill("SIGKILL");
    }
    await exited;

    const { store } = await temporaryStore({ path });
    const records = await store.liveSandboxes();
    const stored = new Set<string>(records.map(({ id }) => id));
    expect(acknowledged.length).toBeGreaterThanOrEqual(500);
    expect(acknowledged.filter((id) => !stored.has(id))).toEqual([]);
    const events = await store.events({ limit: records.length + 1 });
    expect(events.map(({ sandboxId }) => sandboxId)).toEqual(records.map(({ id }) => id));
    expect((await store.counters()).created).toBe(records.length);
  },
);
