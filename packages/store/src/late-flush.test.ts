import { type FileHandle, open } from "node:fs/promises";
import { DatabaseSync } from "node:sqlite";
import { expect, onTestFinished, test, vi } from "vitest";
import { FLUSH_AFTER_MS, LateFlush } from "./late-flush.ts";
import { temporaryStore } from "./testing/store.ts";

/** A flush that the test completes, and a clock that the test advances. */
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

test("all pending writes share one flush, which happens in time and once", async () => {
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

test("writes during a flush get the next one, even after a failed flush", async () => {
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

test("close waits for the running flush, flushes pending writes, and nothing runs afterwards", async () => {
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

test("a failed flush is not repeated until close, which flushes again or fails", async () => {
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

/** Opens a store that another connection has open too, so that closing it does not merge its log into the database. */
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

test("a commit that survives only a server crash is flushed soon, even if no other commit follows", async () => {
  const { store, datasync } = await sharedStore();
  await store.commit({ changes: [], counters: { created: 1 } });
  expect(datasync).not.toHaveBeenCalled();
  await store.commit({ changes: [], counters: { created: 1 }, outlives: "server" });
  await vi.waitFor(() => expect(datasync).toHaveResolved(), { timeout: 15_000 });
  await store.close();
  expect(datasync).toHaveBeenCalledOnce();
});

test("a closed store is completely on disk", async () => {
  const { store, datasync } = await sharedStore();
  await store.commit({ changes: [], counters: { created: 1 }, outlives: "server" });
  await store.close();
  expect(datasync).toHaveResolved();
});
