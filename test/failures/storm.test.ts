import { readdirSync } from "node:fs";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import type { ExecRun, Sandbox } from "@holdfast/sdk";
import { expect, it, onTestFinished, vi } from "vitest";
import { isLong } from "../setup/long.ts";
import { FAST, FaultyWorld } from "../support/faults/faulty-world.ts";
import { Random } from "../support/faults/random.ts";
import { atRest, descriptorKinds, processesBeside } from "../support/server/observe.ts";

const EXECS = Number(process.env.HOLDFAST_STORM ?? (isLong ? 5_000 : 400));
const CONCURRENCY = 32;
const BOXES = 4;
/** The data of which the execs print slices. */
const DATA = Buffer.from(Array.from({ length: 10_000 }, (_, i) => `${i} `).join(""));

interface Job {
  number: number;
  kind: "exec" | "stream" | "poll" | "cancel" | "timeout";
  from: number;
  length: number;
  exitCode: number;
}

function jobOf(number: number, random: Random): Job {
  const kind = random.pick(["exec", "exec", "exec", "exec", "stream", "poll", "cancel", "timeout"] as const);
  const from = random.between(0, DATA.length);
  return { number, kind, from, length: random.between(0, 4_000), exitCode: random.between(0, 100) };
}

const commandOf = ({ number, kind, from, length, exitCode }: Job): string =>
  kind === "cancel" || kind === "timeout"
    ? `echo ${number} >> /tmp/ran; sleep 600`
    : `echo ${number} >> /tmp/ran; tail -c +${from + 1} /tmp/data | head -c ${length}; exit ${exitCode}`;

async function bytesOf(run: ExecRun): Promise<Buffer> {
  const pieces: Uint8Array[] = [];
  for await (const { data } of run.output()) pieces.push(data);
  return Buffer.concat(pieces);
}

/** Returns the status, the exit code, and whether the output was right. */
async function outcomeOf(
  box: Sandbox,
  job: Job,
): Promise<[status: string, exitCode: number | null, output: boolean]> {
  const command = commandOf(job);
  const right = DATA.subarray(job.from, job.from + job.length);
  if (job.kind === "cancel") {
    const run = await box.execs.start(command);
    const { status, exitCode } = await run.cancel();
    return [status, exitCode, true];
  }
  if (job.kind === "timeout") {
    const { status, exitCode } = await box.exec(command, { timeoutMs: 300 });
    return [status, exitCode, true];
  }
  if (job.kind === "exec") {
    const { status, exitCode, stdout } = await box.exec(command);
    return [status, exitCode, right.equals(Buffer.from(stdout))];
  }
  const run = await box.execs.start(command);
  const output = job.kind === "stream" ? await bytesOf(run) : null;
  const { status, exitCode, stdout } = await run.result();
  return [status, exitCode, right.equals(output ?? Buffer.from(stdout))];
}

const expected = ({ kind, exitCode }: Job): [string, number | null, boolean] => {
  if (kind === "cancel") return ["cancelled", null, true];
  return kind === "timeout" ? ["timed_out", null, true] : ["exited", exitCode, true];
};

const FAULTS = ["delay", "throttle", "cut", "reset", "one-sided reset", "half-open", "refuse"] as const;
/** A silent loss delays a caller by its own timeout of seconds, so only one turn in this many causes one. */
const SILENT_CALLS_EVERY = 30;

/** Injects random network faults until aborted. */
async function storm(world: FaultyWorld, random: Random, over: AbortSignal): Promise<void> {
  for (let turn = 1; !over.aborted; turn += 1) {
    if (turn % SILENT_CALLS_EVERY === 0) world.http.set(random.pick(["down", "both"]), { halfOpen: true });
    await strike(world, random.pick(FAULTS), random);
    await sleep(random.between(10, 300));
    for (const proxy of world.proxies) await proxy.refuse(false);
    world.heal();
    await sleep(random.between(10, 100));
  }
}

const WAYS = ["up", "down", "both"] as const;

async function strike(world: FaultyWorld, fault: (typeof FAULTS)[number], random: Random): Promise<void> {
  const proxy = random.pick(world.proxies);
  const keeper = random.pick(world.keepers);
  const ways = random.pick(WAYS);
  switch (fault) {
    case "delay":
      return proxy.set(ways, { delayMs: random.between(1, 60), jitterMs: 30 });
    case "throttle":
      return proxy.set(ways, { bytesPerSecond: 100_000 });
    case "cut":
      return proxy.cut("both", random.next());
    case "reset":
      return proxy.reset("both", random.next());
    case "one-sided reset":
      return keeper.reset(ways);
    case "half-open":
      return keeper.set(ways, { halfOpen: true });
    case "refuse":
      proxy.cut("both", random.next());
      return proxy.refuse(true);
    default:
      return fault satisfies never;
  }
}

/** Names that begin with a dot are empty files that keepers prepare in advance. */
const journalsOf = (world: FaultyWorld): string[] =>
  world.ids
    .flatMap((id) => readdirSync(join(world.server.dir, "sandboxes", id, "control", "journals")))
    .filter((name) => !name.startsWith("."));

it(`${EXECS} execs in a storm of faults have ${EXECS} right outcomes, and leave nothing behind`, async () => {
  const random = Random.fromEnvironment();
  console.log(`storm: HOLDFAST_SEED=${random.seed}`);
  const world = await FaultyWorld.make({ boxes: BOXES, seed: random.seed, numbers: FAST });
  onTestFinished(() => world[Symbol.asyncDispose]());
  const { server } = world;
  const calm = server.client();
  for (const box of await world.boxes(calm)) {
    await box.files.write("/tmp/data", DATA);
    await box.exec("true");
  }
  calm.close();
  const look = () => ({
    descriptors: [server.pid, ...world.keeperPids()].map(descriptorKinds),
    processes: world.keeperPids().map(processesBeside),
  });
  const before = await atRest(look, { quietMs: FAST.httpKeepAliveMs + 1_000 });

  const client = world.client({ timeoutMs: 1_000 });
  const boxes = await world.boxes(client);
  const jobs = Array.from({ length: EXECS }, (_, i) => jobOf(i, random));
  const todo = jobs.values();
  const wrong: unknown[] = [];
  const worker = async () => {
    for (const job of todo) {
      const box = boxes[job.number % BOXES] as Sandbox;
      const outcome = await outcomeOf(box, job).catch((error: unknown) => [error]);
      if (JSON.stringify(outcome) !== JSON.stringify(expected(job))) wrong.push([job, outcome]);
    }
  };
  const over = new AbortController();
  const weather = storm(world, new Random(random.seed + 1), over.signal);
  const startedAt = performance.now();
  await Promise.all(Array.from({ length: CONCURRENCY }, worker));
  over.abort();
  await weather;
  client.close();
  const seconds = ((performance.now() - startedAt) / 1_000).toFixed(0);
  const tallies = world.proxies.map(({ tally }) => tally.accepted);
  console.log(`storm: ${EXECS} execs in ${seconds} s over ${tallies.join(" + ")} connections`);
  expect(wrong).toEqual([]);

  const direct = server.client();
  const ran: string[] = [];
  for (const box of await world.boxes(direct))
    ran.push(...(await box.files.readText("/tmp/ran")).trim().split("\n"));
  const seen = new Set(ran);
  expect(seen.size).toBe(ran.length);
  // Only an exec that was cancelled, or ran out of time, may have ended before its first line.
  const unheard = jobs.filter(({ number }) => !seen.has(String(number)));
  expect(unheard.filter(({ kind }) => kind !== "cancel" && kind !== "timeout")).toEqual([]);
  const { totals, execsRunning, links } = await direct.stats();
  expect([totals.execsStarted, totals.execsEnded, execsRunning]).toEqual([EXECS + BOXES, EXECS + BOXES, 0]);
  expect(links).toMatchObject({ up: BOXES, down: 0 });
  direct.close();
  await vi.waitFor(() => expect(look()).toEqual(before), { timeout: 70_000, interval: 500 });

  expect(journalsOf(world).length).toBeGreaterThanOrEqual(EXECS);
  await server.kill("SIGTERM");
  const numbers = { ...FAST, execRetentionMs: 1_000, retentionEveryMs: 250 };
  await server.start({ env: { HOLDFAST_NUMBERS_JSON: JSON.stringify(numbers) } });
  await vi.waitFor(() => expect(journalsOf(world)).toEqual([]), { timeout: 30_000, interval: 250 });
}, 600_000);
