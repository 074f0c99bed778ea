/** `npm run simulate`: runs schedules until the given count or time is reached, or one fails. */
import { readFileSync, writeFileSync } from "node:fs";
import { availableParallelism, tmpdir } from "node:os";
import { join } from "node:path";
import { parseArgs } from "node:util";
import { Worker } from "node:worker_threads";
import { installMutation, MUTATIONS } from "./mutations.ts";
import { seedOfCommit } from "./schedule/commit-seed.ts";
import { FAULTS } from "./schedule/fault-table.ts";
import { type Schedule, scheduleOf } from "./schedule/schedule.ts";
import type { Failure, Tally } from "./simulation/campaign.ts";
import type { Given, Order } from "./worker.ts";

const USAGE = `Usage: npm run simulate -- [options]
  --seed N          the first seed (default 1); "commit" derives it from the commit that is checked out
  --schedules N     how many schedules, one per seed (default 1000)
  --seconds N       run for this many seconds instead, from the first seed on
  --steps N         steps in each schedule (default 40)
  --workers N       threads (default: one per processor)
  --replay X        run one schedule and show its trace: a seed, or a file that a failure wrote
  --cost N,N,…      measure the cost of audits, sweeps and idle minutes with N sandboxes
  --keep-going      do not stop at the first failure
  --mutation NAME   make a mistake in the engine first: ${MUTATIONS.map(({ name }) => name).join(", ")}
`;

/** Number of seeds given to a worker at a time. */
const CHUNK = 50;
/**
 * Size of the young generation of a worker's heap. It has room for the garbage of a few schedules, so that garbage
 * collection is cheap.
 */
const YOUNG_MB = 64;
const PROGRESS_EVERY_MS = 5_000;
/**
 * Name of the promise that every schedule ends. An endless loop in a schedule breaks this promise, and blocks the
 * worker's thread.
 */
const STUCK = "comes-to-an-end";
/**
 * Time after which a schedule is reported as stuck. No schedule that ends takes nearly as long, even on a busy machine.
 */
const STUCK_MS = 180_000;
/** Maximum number of failures that are explained at the end of a run that continues after failures. */
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
    seed: values.seed === "commit" ? seedOfCommit().seed : wholeNumber("seed", values.seed),
    schedules: wholeNumber("schedules", values.schedules),
    seconds: values.seconds === undefined ? null : wholeNumber("seconds", values.seconds),
    steps: wholeNumber("steps", values.steps),
    workers: Math.max(1, wholeNumber("workers", values.workers)),
    replay: values.replay ?? null,
    cost: values.cost?.split(",").map((count) => wholeNumber("cost", count)) ?? null,
    continueOnFailure: values["keep-going"],
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

/** Distributes seeds to the workers in chunks, until enough schedules have run or one has failed. */
class Campaign {
  readonly #options: Options;
  readonly #startedAt = performance.now();
  readonly #tally: Tally;
  readonly #add: (tally: Tally, more: Tally) => void;
  #nextSeed: number;
  #isStopped = false;

  constructor(options: Options, tally: Tally, add: (tally: Tally, more: Tally) => void) {
    this.#options = options;
    this.#nextSeed = options.seed;
    this.#tally = tally;
    this.#add = add;
  }

  /** Ends the campaign when the schedules in progress have ended. */
  stop(): void {
    this.#isStopped = true;
  }

  get #isOver(): boolean {
    if (this.#isStopped) return true;
    const { seconds, schedules, seed, continueOnFailure } = this.#options;
    if (this.#tally.failures.length > 0 && !continueOnFailure) return true;
    return seconds === null
      ? this.#nextSeed >= seed + schedules
      : performance.now() - this.#startedAt > seconds * 1_000;
  }

  #next(): Order | null {
    if (this.#isOver) return null;
    const { seconds, schedules, seed, steps, continueOnFailure } = this.#options;
    const left = seconds === null ? seed + schedules - this.#nextSeed : CHUNK;
    const order = { from: this.#nextSeed, count: Math.min(CHUNK, left), steps, continueOnFailure };
    this.#nextSeed += order.count;
    return order;
  }

  async run(): Promise<void> {
    const progress = setInterval(() => console.log(this.line()), PROGRESS_EVERY_MS);
    const { workers } = this.#options;
    await Promise.all(Array.from({ length: workers }, () => this.#work())).finally(() =>
      clearInterval(progress),
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
          for (const failure of tally?.failures ?? []) console.log(lineOf(failure));
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

  /**
   * Watches a worker from the main thread. The worker can't watch itself, because an endless loop would block its
   * thread.
   */
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
    }, PROGRESS_EVERY_MS);
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
  const { addTally, emptyTally, neverFired } = await import("./simulation/campaign.ts");
  const tally = emptyTally();
  const campaign = new Campaign(options, tally, addTally);
  console.log(`Seeds from ${options.seed} on, ${options.steps} steps each.`);
  for (const signal of ["SIGINT", "SIGTERM"] as const) process.once(signal, () => campaign.stop());
  await campaign.run();
  for (const failure of tally.failures.slice(0, options.continueOnFailure ? EXPLAINED : 1))
    await explain(failure, options);
  showFaults(tally);
  const missing = tally.failures.length > 0 ? [] : neverFired(tally);
  if (missing.length > 0)
    console.log(
      `\nThese never struck, so nothing was shown about them: ${missing.join(", ")}. Run more schedules.`,
    );
  console.log(`\n${campaign.line()}`);
  return tally.failures.length === 0 && missing.length === 0;
}

/** Prints how often each fault struck, in total and per thousand schedules. */
function showFaults({ fired, schedules }: Tally): void {
  console.log("\nHow often each fault struck, and how often in 1,000 schedules:");
  for (const { name, about } of FAULTS) {
    const strikes = fired[name] ?? 0;
    const rate = ((strikes * 1_000) / Math.max(1, schedules)).toFixed(0);
    console.log(`  ${String(strikes).padStart(8)} ${rate.padStart(6)}  ${name.padEnd(25)} ${about}`);
  }
}

const lineOf = ({ seed, violation: { invariant, step, what } }: Failure): string =>
  `Seed ${seed} breaks "${invariant}" at step ${step}: ${what}`;

/** Prints a violation, the smallest schedule that still causes it, and the trace of that schedule. */
async function explain({ seed, violation }: Failure, { steps }: Options): Promise<void> {
  const [{ Runner }, { shrink }] = await Promise.all([
    import("./simulation/campaign.ts"),
    import("./simulation/shrink.ts"),
  ]);
  console.log(`\n${lineOf({ seed, violation })}`);
  // A schedule that never ends would block the main thread too, so it is not run again for the explanation.
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
  const { Runner } = await import("./simulation/campaign.ts");
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
  const { costOf } = await import("./simulation/cost.ts");
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
