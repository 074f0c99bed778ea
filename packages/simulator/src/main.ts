/** `npm run simulate`: runs schedules until it has run as many, or for as long, as it is told, or until one fails. */
import { readFileSync, writeFileSync } from "node:fs";
import { availableParallelism, tmpdir } from "node:os";
import { join } from "node:path";
import { parseArgs } from "node:util";
import { Worker } from "node:worker_threads";
import type { Failure, Tally } from "./campaign.ts";
import { FAULTS } from "./fault-table.ts";
import { installMutation, MUTATIONS } from "./mutations.ts";
import { type Schedule, scheduleOf } from "./schedule.ts";
import type { Given, Order } from "./worker.ts";

const USAGE = `Usage: npm run simulate -- [options]
  --seed N          the first seed (default 1)
  --schedules N     how many schedules, one per seed (default 1000)
  --seconds N       for so long instead, from the first seed on
  --steps N         steps in each schedule (default 40)
  --workers N       threads (default: one per processor)
  --replay X        run one schedule and show its trace: a seed, or a file that a failure wrote
  --cost N,N,…      measure what audits, sweeps and idle minutes cost with so many sandboxes
  --keep-going      do not stop at the first failure
  --mutation NAME   make a mistake in the engine first: ${MUTATIONS.map(({ name }) => name).join(", ")}
`;

/** Seeds that a worker is given at a time. */
const CHUNK = 50;
/** What a few schedules leave behind, so that it is gone when it is looked for. */
const YOUNG_MB = 64;
const SAY_EVERY_MS = 5_000;
/** The promise that a schedule breaks in which something goes round and round, and lets nothing else happen. */
const STUCK = "comes-to-an-end";
/** No schedule takes nearly as long, on however busy a machine. */
const STUCK_MS = 180_000;
/** Failures that are explained at the end of a run that was to keep going. */
const EXPLAINED = 10;

function readOptions() {
  const { values } = parseArgs({
    options: {
      seed: { type: "string", default: "1" },
      schedules: { type: "string", default: "1000" },
      seconds: { type: "string" },
      steps: { type: "string", default: "40" },
      workers: { type: "string", default: String(availableParallelism()) },
      replay: { type: "string" },
      cost: { type: "string" },
      "keep-going": { type: "boolean", default: false },
      mutation: { type: "string" },
      help: { type: "boolean", default: false },
    },
  });
  return {
    seed: wholeNumber("seed", values.seed),
    schedules: wholeNumber("schedules", values.schedules),
    seconds: values.seconds === undefined ? null : wholeNumber("seconds", values.seconds),
    steps: wholeNumber("steps", values.steps),
    workers: Math.max(1, wholeNumber("workers", values.workers)),
    replay: values.replay ?? null,
    cost: values.cost?.split(",").map((count) => wholeNumber("cost", count)) ?? null,
    goOn: values["keep-going"],
    mutation: values.mutation ?? null,
    help: values.help,
  };
}

type Options = ReturnType<typeof readOptions>;

function wholeNumber(name: string, value: string): number {
  const number = Number(value);
  if (!Number.isSafeInteger(number) || number < 0) throw new Error(`--${name} takes a whole number`);
  return number;
}

/** Gives chunks of seeds to the workers until enough were run, or one failed. */
class Campaign {
  readonly #options: Options;
  readonly #startedAt = performance.now();
  readonly #tally: Tally;
  readonly #add: (tally: Tally, more: Tally) => void;
  #nextSeed: number;

  constructor(options: Options, tally: Tally, add: (tally: Tally, more: Tally) => void) {
    this.#options = options;
    this.#nextSeed = options.seed;
    this.#tally = tally;
    this.#add = add;
  }

  get #isOver(): boolean {
    const { seconds, schedules, seed, goOn } = this.#options;
    if (this.#tally.failures.length > 0 && !goOn) return true;
    return seconds === null
      ? this.#nextSeed >= seed + schedules
      : performance.now() - this.#startedAt > seconds * 1_000;
  }

  #next(): Order | null {
    if (this.#isOver) return null;
    const { seconds, schedules, seed, steps, goOn } = this.#options;
    const left = seconds === null ? seed + schedules - this.#nextSeed : CHUNK;
    const order = { from: this.#nextSeed, count: Math.min(CHUNK, left), steps, goOn };
    this.#nextSeed += order.count;
    return order;
  }

  async run(): Promise<void> {
    const saying = setInterval(() => console.log(this.line()), SAY_EVERY_MS);
    const { workers } = this.#options;
    await Promise.all(Array.from({ length: workers }, () => this.#work())).finally(() =>
      clearInterval(saying),
    );
  }

  async #work(): Promise<void> {
    const { mutation } = this.#options;
    const at = new Float64Array(new SharedArrayBuffer(Float64Array.BYTES_PER_ELEMENT));
    const worker = new Worker(new URL("./worker.ts", import.meta.url), {
      workerData: { mutation, at } satisfies Given,
      resourceLimits: { maxYoungGenerationSizeMb: YOUNG_MB },
    });
    let watching: NodeJS.Timeout | undefined;
    try {
      await new Promise<void>((resolve, reject) => {
        worker.on("error", reject);
        watching = this.#watch(at, resolve);
        worker.on("message", (tally: Tally | null) => {
          if (tally !== null) this.#add(this.#tally, tally);
          const order = this.#next();
          if (order === null) resolve();
          else worker.postMessage(order);
        });
      });
    } finally {
      clearInterval(watching);
      await worker.terminate();
    }
  }

  /** A loop that waits for nothing keeps its whole thread: only another one can tell. */
  #watch(at: Float64Array, over: () => void): NodeJS.Timeout {
    let last = { seed: at[0], since: performance.now() };
    return setInterval(() => {
      const [seed] = at;
      if (seed === undefined || seed === 0 || seed !== last.seed) last = { seed, since: performance.now() };
      const ms = performance.now() - last.since;
      if (seed === undefined || ms < STUCK_MS) return;
      const what = `it has not come to its end within ${(ms / 1_000).toFixed(0)} s`;
      this.#tally.failures.push({ seed, violation: { invariant: STUCK, what, step: 0 } });
      over();
    }, SAY_EVERY_MS);
  }

  line(): string {
    const { schedules, virtualMs, failures } = this.#tally;
    const seconds = (performance.now() - this.#startedAt) / 1_000;
    const rate = (schedules / seconds).toFixed(0);
    const hours = (virtualMs / 3_600_000).toFixed(1);
    return `${schedules} schedules in ${seconds.toFixed(0)} s (${rate}/s), ${hours} virtual hours, ${failures.length} failed`;
  }
}

async function runCampaign(options: Options): Promise<boolean> {
  const { addTally, emptyTally, neverFired } = await import("./campaign.ts");
  const tally = emptyTally();
  const campaign = new Campaign(options, tally, addTally);
  await campaign.run();
  for (const failure of tally.failures.slice(0, options.goOn ? EXPLAINED : 1))
    await explain(failure, options);
  const missing = tally.failures.length > 0 ? [] : neverFired(tally);
  if (tally.failures.length === 0) showFaults(tally);
  if (missing.length > 0)
    console.log(
      `\nThese never struck, so nothing was shown about them: ${missing.join(", ")}. Run more schedules.`,
    );
  console.log(`\n${campaign.line()}`);
  return tally.failures.length === 0 && missing.length === 0;
}

function showFaults({ fired }: Tally): void {
  console.log("\nHow often each fault struck:");
  for (const { name, about } of FAULTS)
    console.log(`  ${String(fired[name] ?? 0).padStart(8)}  ${name.padEnd(24)} ${about}`);
}

/** Prints what was broken, the smallest schedule that still breaks it, and what happens in it. */
async function explain({ seed, violation }: Failure, { steps }: Options): Promise<void> {
  const [{ Runner }, { shrink }] = await Promise.all([import("./campaign.ts"), import("./shrink.ts")]);
  console.log(`\nSeed ${seed} breaks "${violation.invariant}" at step ${violation.step}: ${violation.what}`);
  // Nor would it in this thread.
  if (violation.invariant === STUCK) return;
  const runner = await Runner.open();
  const smallest = await shrink(scheduleOf(seed, steps), violation, async (schedule) => {
    return (await runner.run(schedule)).violation;
  });
  const file = join(tmpdir(), `holdfast-simulation-${seed}.json`);
  writeFileSync(file, `${JSON.stringify(smallest, null, 1)}\n`);
  console.log(`The smallest schedule that breaks it, ${smallest.steps.length} steps:`);
  await show(smallest);
  await runner.close();
  console.log(`Replay it: npm run simulate -- --replay ${file}`);
  console.log(`All of it: npm run simulate -- --replay ${seed} --steps ${steps}`);
}

async function show(schedule: Schedule): Promise<boolean> {
  const { Runner } = await import("./campaign.ts");
  const runner = await Runner.open();
  console.log(JSON.stringify(schedule.limits));
  for (const [index, { after, act }] of schedule.steps.entries())
    console.log(`  ${String(index).padStart(3)}  +${after} ms  ${JSON.stringify(act)}`);
  const { trace, violation, hash } = await runner.run(schedule, { trace: true });
  console.log(trace.join("\n"));
  console.log(`trace ${hash.slice(0, 16)}`);
  await runner.close();
  return violation === null;
}

async function showCost(counts: readonly number[]): Promise<void> {
  Error.stackTraceLimit = 0;
  const { costOf } = await import("./cost.ts");
  console.log("| sandboxes | start | audit | sweep | idle minute |\n|---:|---:|---:|---:|---:|");
  for (const { records, start, audit, sweep, minute } of await costOf(counts)) {
    const cells = [start, audit, sweep, minute].map(
      ({ cpuMs, queries }) => `${cpuMs.toFixed(0)} ms, ${queries} queries`,
    );
    console.log(`| ${[records, ...cells].join(" | ")} |`);
  }
}

async function main(): Promise<void> {
  const options = readOptions();
  if (options.help) return console.log(USAGE);
  if (options.mutation !== null) installMutation(options.mutation);
  const { replay, steps, cost } = options;
  if (cost !== null) return showCost(cost);
  const passed =
    replay === null
      ? await runCampaign(options)
      : await show(/^\d+$/.test(replay) ? scheduleOf(Number(replay), steps) : readSchedule(replay));
  process.exitCode = passed ? 0 : 1;
}

const readSchedule = (file: string): Schedule => JSON.parse(readFileSync(file, "utf8"));

main().catch((error: unknown) => {
  console.error(error instanceof Error ? error.message : error);
  console.error(USAGE);
  process.exitCode = 2;
});
