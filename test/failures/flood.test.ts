import { statSync } from "node:fs";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { type ExecRun, type OutputChunk, OutputDroppedError } from "@holdfast/sdk";
import { expect, it } from "vitest";
import { residentBytes } from "../support/server/observe.ts";
import { TestServer } from "../support/server/test-server.ts";
import { LineReader, printer } from "../support/workloads/numbered-lines.ts";

const MIB = 1_048_576;
const LINES = 1_024 * 1_024;
const JOURNAL_CAP = 64 * MIB;
/** Pause before the first line, in which every reader begins. */
const PAUSE_MS = 3_000;
const inMib = (bytes: number) => `${(bytes / MIB).toFixed(0)} MiB`;

/** Returns the peak memory growth of the processes while `work` is in progress. */
async function growth<Result>(pids: number[], work: Promise<Result>): Promise<[Result, number[]]> {
  const before = pids.map(residentBytes);
  const most = [...before];
  let done = false;
  const watch = (async () => {
    while (!done) {
      for (const [i, pid] of pids.entries()) most[i] = Math.max(most[i] ?? 0, residentBytes(pid));
      await sleep(50);
    }
  })();
  try {
    return [await work, most.map((bytes, i) => bytes - (before[i] ?? 0))];
  } finally {
    done = true;
    await watch;
  }
}

/** Reads as fast as possible; continues with the oldest output kept if it fell behind. */
async function readFast(run: ExecRun): Promise<LineReader> {
  const reader = new LineReader();
  for await (const chunk of run.output({ onDropped: "skip" })) {
    if (chunk.dropped) reader.gap();
    reader.take(chunk.data);
  }
  return reader;
}

/** Reads slowly, without holding the command back, until the server reports that it fell behind. */
async function readSlowly(run: ExecRun): Promise<{ reader: LineReader; lastCursor: string }> {
  const reader = new LineReader();
  let lastCursor = "";
  await droppedAt(run, undefined, async ({ data, cursor }) => {
    reader.take(data);
    lastCursor = cursor;
    await sleep(25);
  });
  return { reader, lastCursor };
}

/** Reads until the server reports dropped output, and expects the position of the oldest output left. */
async function droppedAt(
  run: ExecRun,
  cursor: string | undefined,
  take: (chunk: OutputChunk) => Promise<void> = async () => undefined,
): Promise<OutputDroppedError> {
  try {
    for await (const chunk of run.output({ cursor, hold: false })) await take(chunk);
  } catch (error) {
    expect(error).toBeInstanceOf(OutputDroppedError);
    const dropped = error as OutputDroppedError;
    expect(dropped.floor).toMatch(/\.\d+$/);
    return dropped;
  }
  throw new Error("nobody said that output was dropped");
}

const durationOf = ({ startedAt, endedAt }: { startedAt: string | null; endedAt: string | null }) =>
  Date.parse(endedAt ?? "") - Date.parse(startedAt ?? "");

it("a gigabyte of output fills neither memory nor disk, is not blocked by a slow reader that accepts gaps, and readers are informed of them", async () => {
  await using server = await TestServer.start();
  const client = server.client();
  const box = await client.sandboxes.create({ resources: { memoryMb: 256 } });
  await box.exec(printer(64));
  const alone = await box.exec(printer(LINES));
  expect(alone).toMatchObject({ exitCode: 0, truncated: true });

  const later = `sleep ${PAUSE_MS / 1_000}; exec "$@"`;
  const run = await box.execs.start(["sh", "-c", later, "sh", ...printer(LINES)]);
  const readers = Promise.all([run.result(), readFast(run), readSlowly(run)]);
  const [[result, fast, slow], [serverGrowth = 0, keeperGrowth = 0]] = await growth(
    [server.pid, server.keeperPid(box.id)],
    readers,
  );
  const [aloneMs, readMs] = [durationOf(alone), durationOf(result) - PAUSE_MS];
  console.log(
    `flood: alone ${aloneMs} ms, with readers ${readMs} ms (${(readMs / aloneMs).toFixed(2)}×);`,
    `server +${inMib(serverGrowth)}, keeper +${inMib(keeperGrowth)};`,
    `fast reader ${inMib(fast.bytes)} with ${fast.gaps} gaps, slow reader ${inMib(slow.reader.bytes)}`,
  );
  expect(result.exitCode).toBe(0);
  expect(readMs / aloneMs).toBeLessThan(4);
  expect(serverGrowth).toBeLessThan(256 * MIB);
  expect(keeperGrowth).toBeLessThan(32 * MIB);
  const journal = join(server.dir, "sandboxes", box.id, "control", "journals", run.id);
  expect(statSync(journal).blocks * 512).toBeLessThan(JOURNAL_CAP * 1.25);

  expect(fast.last).toBe(LINES - 1);
  expect(slow.reader.last).toBeLessThan(LINES - 1);
  // Dropped output stays dropped: a request for it after the end returns the last floor, which no longer changes.
  const { floor } = await droppedAt(run, slow.lastCursor);
  const tail = new LineReader();
  tail.gap();
  for await (const { data } of run.output({ cursor: floor ?? "" })) tail.take(data);
  expect(tail.last).toBe(LINES - 1);
  expect(tail.bytes).toBeGreaterThan(JOURNAL_CAP / 2);
  client.close();
}, 240_000);
