import { spawn } from "node:child_process";
import { once } from "node:events";
import { closeSync, createReadStream, mkdtempSync, openSync, rmSync, statSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import type { ExecRun, Sandbox, StartOptions } from "@holdfast/sdk";
import { describe, expect, it, onTestFinished, vi } from "vitest";
import { residentBytes } from "../support/server/observe.ts";
import { CLI, TestServer } from "../support/server/test-server.ts";
import { LineReader, printer } from "../support/workloads/numbered-lines.ts";

const MIB = 1_048_576;
const CAP = 4 * MIB;
/** More than the journal and everything between the command and its reader hold together. */
const LINES = 40 * 1_024;
const LONG_MS = 120_000;
const SOON = { timeout: 30_000, interval: 100 };

async function served(numbers: Record<string, number> = {}) {
  const HOLDFAST_NUMBERS_JSON = JSON.stringify({ journalCapBytes: CAP, ...numbers });
  const server = await TestServer.start({ HOLDFAST_NUMBERS_JSON });
  onTestFinished(() => server[Symbol.asyncDispose]());
  const client = server.client();
  onTestFinished(() => client.close());
  return { server, client, box: await client.sandboxes.create({ name: "box" }) };
}

/** Starts the command as `holdfast exec` does: its output is kept for the reader that comes. */
const attached = (box: Sandbox, options: StartOptions = {}) =>
  box.execs.start(printer(LINES), { ...options, awaitReader: true });

/** Reads to the end. `pace` is called after each chunk. */
async function read(run: ExecRun, pace: (bytes: number) => Promise<void> | void): Promise<LineReader> {
  const reader = new LineReader();
  for await (const { data } of run.output()) {
    reader.take(data);
    await pace(reader.bytes);
  }
  return reader;
}

/** A pause once, when so many bytes were read. */
function onceAfter(bytes: number, work: () => Promise<unknown>) {
  let isDone = false;
  return async (taken: number) => {
    if (isDone || taken < bytes) return;
    isDone = true;
    await work();
  };
}

const journalOf = (server: TestServer, box: Sandbox, run: ExecRun) =>
  join(server.dir, "sandboxes", box.id, "control", "journals", run.id);

/** Waits until the command's journal no longer grows. */
async function untilItWaits(server: TestServer, box: Sandbox, run: ExecRun): Promise<void> {
  let last = -1;
  await vi.waitFor(
    async () => {
      const { size } = statSync(journalOf(server, box, run));
      const isStill = size === last && size >= CAP;
      last = size;
      expect(isStill).toBe(true);
    },
    { ...SOON, interval: 300 },
  );
}

function expectWhole(reader: LineReader, run: ExecRun): void {
  expect(reader.last).toBe(LINES - 1);
  expect(run.info).toMatchObject({ status: "exited", exitCode: 0, truncated: false });
}

describe("output beyond the cap of its journal", () => {
  it("arrives whole at a reader that pauses, within bounded memory and disk", async () => {
    const { server, box } = await served();
    const run = await attached(box);
    const pids = [server.pid, server.keeperPid(box.id)];
    const before = pids.map(residentBytes);
    const most = [...before];
    const pause = onceAfter(MIB, async () => {
      await untilItWaits(server, box, run);
      for (const [index, pid] of pids.entries()) most[index] = residentBytes(pid);
      expect(statSync(journalOf(server, box, run)).blocks * 512).toBeLessThan(2 * CAP);
    });
    expectWhole(await read(run, pause), run);
    expect((most[0] ?? 0) - (before[0] ?? 0)).toBeLessThan(128 * MIB);
    expect((most[1] ?? 0) - (before[1] ?? 0)).toBeLessThan(16 * MIB);
  }, 120_000);

  it("arrives whole although the server is killed and started again meanwhile", async () => {
    const { server, box } = await served();
    const run = await attached(box);
    const { port } = new URL(server.url);
    const crash = onceAfter(MIB, async () => {
      await untilItWaits(server, box, run);
      await server.kill("SIGKILL");
      await server.start({ env: { HOLDFAST_PORT: port } });
    });
    expectWhole(await read(run, crash), run);
  }, 120_000);

  it("arrives whole although the sandbox is paused and resumed while the command waits", async () => {
    const { server, box } = await served();
    const run = await attached(box);
    const pause = onceAfter(MIB, async () => {
      await untilItWaits(server, box, run);
      await box.pause();
      await box.resume();
    });
    expectWhole(await read(run, pause), run);
  }, 120_000);

  it("arrives whole at the standard output of the CLI", async () => {
    const { server } = await served();
    const { file, child } = cli(server, ["exec", "box", "--", ...printer(LINES)]);
    expect((await once(child, "exit"))[0]).toBe(0);
    const reader = new LineReader();
    for await (const data of createReadStream(file)) reader.take(data);
    expect(reader.last).toBe(LINES - 1);
  }, 120_000);

  it("is dropped for a reader that did not follow before the first of it was dropped", async () => {
    const { box } = await served({ outputHoldMs: LONG_MS });
    const script = "head -c 16M /dev/zero; touch /tmp/written; read go; head -c 64M /dev/zero";
    const run = await box.execs.start(script, { openStdin: true });
    await vi.waitFor(async () => expect((await box.exec("test -e /tmp/written")).exitCode).toBe(0), SOON);
    const follower = run.output()[Symbol.asyncIterator]();
    expect((await follower.next()).done).toBe(false);
    await run.write("go\n");
    expect((await run.result()).exitCode).toBe(0);
    await follower.return?.();
  }, 120_000);
});

describe("a command whose reader", () => {
  it("is stopped continues after the limit, and the reader is informed of the gap", async () => {
    const { server, client, box } = await served({
      outputHoldMs: 2_000,
      outputReturnMs: 500,
      httpStallMs: 2_000,
    });
    const { child, signal, errors } = cli(server, ["exec", "box", "--", ...printer(LINES)]);
    const exec = await vi.waitFor(async () => {
      const [newest] = (await box.execs.list({ limit: 1 })).items;
      if (newest === undefined) throw new Error("no exec yet");
      return newest;
    }, SOON);
    signal("SIGSTOP");
    const run = await client.execs.get(exec.id);
    expect(await run.result()).toMatchObject({ status: "exited", exitCode: 0, truncated: true });
    signal("SIGCONT");
    expect((await once(child, "exit"))[0]).toBe(125);
    expect(errors()).toMatch(/no longer kept|output is missing/);
  }, 120_000);

  it("leaves continues soon, and can be followed from the oldest output kept", async () => {
    const { box } = await served({ outputReturnMs: 300 });
    const run = await box.execs.start(printer(LINES));
    for await (const _ of run.output()) break;
    expect(await run.result()).toMatchObject({ exitCode: 0, truncated: true });
    const tail = new LineReader();
    tail.gap();
    for await (const { data } of run.output({ onDropped: "skip" })) tail.take(data);
    expect(tail.last).toBe(LINES - 1);
  }, 120_000);

  it("accepts gaps is not held back, however slow the reader", async () => {
    const { box } = await served({ outputHoldMs: LONG_MS, outputReturnMs: LONG_MS });
    const run = await box.execs.start(printer(LINES));
    const follower = run.output({ onDropped: "skip" })[Symbol.asyncIterator]();
    await follower.next();
    expect(await run.result()).toMatchObject({ exitCode: 0, truncated: true });
    await follower.return?.();
  }, 120_000);

  it("is held can be cancelled, and ends at its timeout", async () => {
    const { server, box } = await served({ outputHoldMs: LONG_MS });
    const cancelled = await attached(box);
    const follower = cancelled.output()[Symbol.asyncIterator]();
    await follower.next();
    await untilItWaits(server, box, cancelled);
    expect(await cancelled.cancel()).toMatchObject({ status: "cancelled" });
    await follower.return?.();
    const timed = await attached(box, { timeoutMs: 1_500 });
    await expect(
      read(
        timed,
        onceAfter(MIB, () => sleep(2_500)),
      ),
    ).resolves.toBeDefined();
    expect(timed.info).toMatchObject({ status: "timed_out" });
  }, 120_000);
});

/** Runs the CLI with its standard output in a file. */
function cli(server: TestServer, words: string[]) {
  const dir = mkdtempSync(join(tmpdir(), "holdfast-held-"));
  const file = join(dir, "out");
  const out = openSync(file, "w");
  const child = spawn(process.execPath, [CLI, ...words], {
    env: { ...server.env, HOLDFAST_URL: server.url, HOLDFAST_API_KEY: server.key },
    stdio: ["ignore", out, "pipe"],
    detached: true,
  });
  closeSync(out);
  // The program that is started may run the CLI in a child, so signals go to the process group.
  const signal = (name: NodeJS.Signals) => {
    if (child.pid !== undefined && child.exitCode === null && child.signalCode === null)
      process.kill(-child.pid, name);
  };
  let text = "";
  child.stderr?.setEncoding("utf8").on("data", (part: string) => {
    text += part;
  });
  onTestFinished(() => {
    signal("SIGKILL");
    rmSync(dir, { recursive: true, force: true });
  });
  return { file, child, signal, errors: () => text };
}
