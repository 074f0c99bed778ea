/**
 * Benchmarks a command that prints a gigabyte: its speed compared with the same command writing to a file, alone and
 * with a reader that can't keep up; how much memory the slow reader costs; and how fast a reader that keeps up receives
 * all output, compared with `docker exec`.
 */
import { setTimeout as sleep } from "node:timers/promises";
import type { ExecResult, ExecRun, Sandbox } from "@holdfast/sdk";
import { TestServer } from "../test/support/server/test-server.ts";
import type { Docker } from "./docker.ts";
import { rssKb } from "./memory.ts";
import type { Row } from "./report.ts";

const MB = 1_048_576;
const SIZE = 1_024 * MB;
const ROUNDS = 3;
const FILE = "/home/user/gigabyte";
/** Writes in blocks of a pipe's size, so that the number of system calls does not dominate the result. */
const PRINT = ["/bin/dd", "if=/dev/zero", "bs=64k", `count=${SIZE / 65_536}`, "status=none"];
const SLOW_PAUSE_MS = 25;
const WATCH_MS = 50;
/** Limits that let a journal keep all output, so that a reader that falls behind still receives everything. */
const KEEPING_ALL = { journalCapBytes: 2 * SIZE, journalsPerSandboxBytes: 16 * SIZE };

const median = (values: readonly number[]): number =>
  [...values].sort((a, b) => a - b)[Math.floor(values.length / 2)] ?? Number.NaN;
const rateOf = (ms: readonly number[]): number => SIZE / MB / (median(ms) / 1_000);

function durationOf({ startedAt, endedAt, exitCode }: ExecResult): number {
  if (exitCode !== 0 || startedAt === null || endedAt === null) throw new Error("the command failed");
  return Date.parse(endedAt) - Date.parse(startedAt);
}

/**
 * Reads a chunk every 25 ms. If dropped output leaves a gap, the reader continues with the oldest output that is kept.
 */
async function readSlowly(run: ExecRun, signal: AbortSignal): Promise<void> {
  try {
    for await (const _chunk of run.output({ onDropped: "skip", signal })) await sleep(SLOW_PAUSE_MS);
  } catch (error) {
    if (!signal.aborted) throw error;
  }
}

/** Returns the peak memory growth of each process while `work` runs, in kilobytes. */
async function growth(pids: readonly number[], work: () => Promise<unknown>): Promise<number[]> {
  const before = pids.map(rssKb);
  const most = [...before];
  const watch = setInterval(() => {
    for (const [i, pid] of pids.entries()) most[i] = Math.max(most[i] ?? 0, rssKb(pid));
  }, WATCH_MS);
  await work().finally(() => clearInterval(watch));
  return most.map((kb, i) => kb - (before[i] ?? 0));
}

/** Measures the speed of the command itself, with no reader or one that is too slow to read everything. */
export async function printing(server: TestServer, box: Sandbox, rows: Row[]): Promise<void> {
  const times = { file: [] as number[], alone: [] as number[], watched: [] as number[] };
  const grown: number[][] = [];
  for (let round = 0; round <= ROUNDS; round += 1) {
    const toFile = durationOf(await box.exec([...PRINT, `of=${FILE}`]));
    await box.files.remove(FILE);
    const alone = durationOf(await (await box.execs.start(PRINT)).result());
    let watched = 0;
    const growths = await growth([server.pid, server.keeperPid(box.id)], async () => {
      const over = new AbortController();
      const run = await box.execs.start(PRINT);
      const reader = readSlowly(run, over.signal);
      watched = durationOf(await run.result());
      over.abort();
      await reader;
    });
    if (round === 0) continue;
    times.file.push(toFile);
    times.alone.push(alone);
    times.watched.push(watched);
    grown.push(growths);
  }
  const add = (what: string, who: string, ms: readonly number[]) =>
    rows.push({ what, who, value: rateOf(ms), unit: "MB/s", higherIsBetter: true });
  add("1 GB printed, from start to end of the exec", "holdfast", times.alone);
  add("1 GB printed, from start to end of the exec", "with a slow reader", times.watched);
  add("1 GB printed, from start to end of the exec", "into a file", times.file);
  for (const [i, who] of ["server", "keeper"].entries()) {
    const value = Math.max(...grown.map((each) => each[i] ?? 0)) / 1_024;
    rows.push({ what: `1 GB with a slow reader: growth of the ${who}`, who: "holdfast", value, unit: "MB" });
  }
}

type Count = (bytes: number) => void;

/** Returns the time from the start of the command until the reader has the last byte, in milliseconds. */
async function untilLastByte(work: (count: Count) => Promise<unknown>): Promise<number> {
  const startedAt = performance.now();
  let bytes = 0;
  let lastAt = startedAt;
  await work((more) => {
    bytes += more;
    lastAt = performance.now();
  });
  if (bytes < SIZE) throw new Error(`only ${bytes} bytes received`);
  return lastAt - startedAt;
}

/** Measures how fast a reader that only counts bytes receives all output. */
export async function reading(docker: Docker | null, container: string, rows: Row[]): Promise<void> {
  await using server = await TestServer.start({ HOLDFAST_NUMBERS_JSON: JSON.stringify(KEEPING_ALL) });
  const client = server.client();
  const times = { holdfast: [] as number[], "docker API exec": [] as number[] };
  for (let round = 0; round <= ROUNDS; round += 1) {
    // Each round uses a new sandbox, so that the journal of the round before does not affect the result.
    const box = await client.sandboxes.create();
    const ours = await untilLastByte(async (count) => {
      const run = await box.execs.start(PRINT);
      for await (const { data } of run.output()) count(data.length);
    });
    await box.delete();
    if (round > 0) times.holdfast.push(ours);
    if (docker === null) continue;
    const theirs = await untilLastByte((count) =>
      docker.exec(container, PRINT, (data) => count(data.length)),
    );
    if (round > 0) times["docker API exec"].push(theirs);
  }
  for (const [who, ms] of Object.entries(times)) {
    if (ms.length === 0) continue;
    rows.push({ what: "1 GB to a fast reader", who, value: rateOf(ms), unit: "MB/s", higherIsBetter: true });
  }
  client.close();
}
