import { type FileHandle, open } from "node:fs/promises";
import { DatabaseSync } from "node:sqlite";
import { expect, onTestFinished, test, vi } from "vitest";
import { FLUSH_AFTER_MS, LateFlush } from "./late-flush.ts";
import { temporaryStore } from "./testing/store.ts";

/** A flush that ends when the test says so, under a clock that the test moves. */
function flushes() {
  vi.useFakeTimers();
  onTestFinished(() => void vi.useRealTimers());
  const running: PromiseWithResolvers<void>[] = [];
  const late = new LateFlush(() => {
    const flush = Promise.withResolvers<void>();
    running.push(flush);
    return flush.promise;
  });
  return { late, running, pass: (ms: number) => vi.advanceTimersByTimeAsync(ms) };
}

test("all that is owed shares one flush, which comes in time and not again", async () => {
  const { late, running, pass } = flushes();
  late.owe();
  await pass(FLUSH_AFTER_MS - 1);
  late.owe();
  expect(running).toHaveLength(0);
  await pass(1);
  expect(running).toHaveLength(1);
  running[0]?.resolve();
  await pass(10 * FLUSH_AFTER_MS);
  expect(running).toHaveLength(1);
});

test("what is owed while a flush runs gets the next one, even after one that failed", async () => {
  const { late, running, pass } = flushes();
  late.owe();
  await pass(FLUSH_AFTER_MS);
  late.owe();
  await pass(10 * FLUSH_AFTER_MS);
  expect(running).toHaveLength(1);
  running[0]?.reject(new Error("sick disk"));
  await pass(FLUSH_AFTER_MS);
  expect(running).toHaveLength(2);
});

test("a close waits for the flush that runs, pays what is owed, and nothing runs afterwards", async () => {
  const { late, running, pass } = flushes();
  late.owe();
  await pass(FLUSH_AFTER_MS);
  late.owe();
  let closed = false;
  const closing = late.close().then(() => {
    closed = true;
  });
  running[0]?.resolve();
  await pass(0);
  expect(running).toHaveLength(2);
  expect(closed).toBe(false);
  running[1]?.resolve();
  await closing;
  late.owe();
  await pass(10 * FLUSH_AFTER_MS);
  expect(running).toHaveLength(2);
});

test("a flush that failed is not repeated until the close, which makes up for it or fails", async () => {
  const { late, running, pass } = flushes();
  late.owe();
  await pass(FLUSH_AFTER_MS);
  running[0]?.reject(new Error("sick disk"));
  await pass(10 * FLUSH_AFTER_MS);
  expect(running).toHaveLength(1);
  const closing = late.close();
  const failed = expect(closing).rejects.toThrow("dead disk");
  await pass(0);
  running[1]?.reject(new Error("dead disk"));
  await failed;
});

/** A store that someone else has open too, so that closing it doesn't fold its log into the database. */
async function sharedStore() {
  const { store, path } = await temporaryStore();
  const reader = new DatabaseSync(path, { readOnly: true });
  reader.prepare("SELECT count(*) FROM sandboxes").get();
  const handle = await open(path);
  const datasync = vi.spyOn(Object.getPrototypeOf(handle) as FileHandle, "datasync");
  await handle.close();
  onTestFinished(() => {
    datasync.mockRestore();
    reader.close();
  });
  return { store, datasync };
}

test("a commit that outlives only the server is put on the disk soon, though nothing else is committed", async () => {
  const { store, datasync } = await sharedStore();
  await store.commit({ changes: [], counters: { created: 1 } });
  expect(datasync).not.toHaveBeenCalled();
  await store.commit({ changes: [], counters: { created: 1 }, outlives: "server" });
  await vi.waitFor(() => expect(datasync).toHaveResolved(), { timeout: 15_000 });
  await store.close();
  expect(datasync).toHaveBeenCalledOnce();
});

test("a closed store has everything on the disk", async () => {
  const { store, datasync } = await sharedStore();
  await store.commit({ changes: [], counters: { created: 1 }, outlives: "server" });
  await store.close();
  expect(datasync).toHaveResolved();
});
