/**
 * Injects every fault that is possible on one machine, at random, for a while and under load. Then the faults stop, and
 * everything has to recover by itself. Runs only on request: HOLDFAST_CHAOS='{}', or the long form
 * HOLDFAST_CHAOS='{"sandboxes":200,"minutes":10}'. HOLDFAST_SEED repeats the choices of a run, though not its timing;
 * `log` in HOLDFAST_CHAOS is a file for the output of the servers.
 */
import { setTimeout as sleep } from "node:timers/promises";
import type { Holdfast } from "@holdfast/sdk";
import { expect, it, onTestFinished } from "vitest";
import { storm } from "../support/chaos/chaos-faults.ts";
import {
  audited,
  type Burden,
  burdenOf,
  counted,
  creates,
  deleted,
  lightened,
  served,
  settled,
  strayFiles,
} from "../support/chaos/chaos-verdict.ts";
import { Workload } from "../support/chaos/chaos-workload.ts";
import { ChaosWorld } from "../support/chaos/chaos-world.ts";
import { Random } from "../support/faults/random.ts";

const FORM = {
  sandboxes: 20,
  minutes: 0.75,
  workers: 10,
  /** Average pause between faults. */
  pauseMs: 400,
  log: undefined as string | undefined,
  ...(JSON.parse(process.env.HOLDFAST_CHAOS ?? "{}") as object),
};
/** The faults start when nearly all sandboxes exist, or after this time. */
const FILLED_MS = 300_000;
/** In runs of at least this length, each kind of fault must have happened. */
const ALL_FAULTS_MINUTES = 5;
/** Time after the faults: the last calls, and every wait of the verdict to its end. */
const AFTERWARDS_MS = 900_000;

const say = (what: string, about: unknown) => console.log(`chaos: ${what}: ${JSON.stringify(about)}`);

async function live(world: ChaosWorld, client: Holdfast): Promise<Workload> {
  const workload = new Workload(client, FORM);
  const over = new AbortController();
  const work = workload.run(world.random.seed + 1, over.signal);
  for (const end = Date.now() + FILLED_MS; workload.known.size < FORM.sandboxes * 0.9; await sleep(100))
    if (Date.now() > end) break;
  say("sandboxes at the beginning", workload.known.size);
  const weather = storm(world, FORM.pauseMs, over);
  await sleep(FORM.minutes * 60_000, undefined, { signal: over.signal }).catch(() => undefined);
  over.abort();
  const struck = await weather;
  say("faults", struck);
  await work;
  say(
    "calls",
    Object.fromEntries([...workload.outcomes].map(([kind, tally]) => [kind, Object.fromEntries(tally)])),
  );
  say("the longest call, in seconds", Math.round(workload.longestMs / 1_000));
  const missed = Object.entries(struck).flatMap(([name, times]) => (times === 0 ? [name] : []));
  if (FORM.minutes >= ALL_FAULTS_MINUTES && missed.length > 0)
    world.problems.push(`never happened: ${missed.join(", ")}`);
  return workload;
}

/** Returns the violations found, by check. */
async function judge(world: ChaosWorld, client: Holdfast, workload: Workload, fresh: Burden) {
  if (world.isDown) throw new Error(`there is no server any more: ${world.problems.join("; ")}`);
  const calmAt = performance.now();
  const problems: Record<string, string[]> = { unsettled: await settled(world, client) };
  const { sandboxes, totals } = await client.stats();
  say("settled within seconds", Math.round((performance.now() - calmAt) / 1_000));
  say("then", { sandboxes, totals });
  problems.barren = await creates(client);
  problems.audit = await audited(world, client);
  problems.lies = await served(world, client, workload);
  problems.left = await deleted(world, client);
  client.close();
  await sleep(2_000);
  const spent = burdenOf(world.server.pid);
  say("the server", { fresh, spent });
  problems.heavy = lightened(spent, fresh);
  problems.broken = [...world.problems, ...workload.problems];
  await world.server.kill("SIGTERM");
  problems.miscounted = counted(world);
  return Object.fromEntries(Object.entries(problems).filter(([, wrong]) => wrong.length > 0));
}

it(
  `${FORM.sandboxes} sandboxes, broken in every way for ${FORM.minutes} minutes, settle by themselves and leave nothing`,
  async () => {
    const random = Random.fromEnvironment();
    say(`HOLDFAST_SEED=${random.seed}`, FORM);
    const strays = strayFiles().length;
    const world = await ChaosWorld.make(random, FORM.log);
    onTestFinished(() => world[Symbol.asyncDispose]());
    const fresh = burdenOf(world.server.pid);
    const client = world.server.client({ outageMs: 90_000 });
    await client.stats();
    const problems = await judge(world, client, await live(world, client), fresh);
    say("refused starts", world.refusedStarts);
    say("errors in the log", Object.fromEntries(world.complaints));
    say("files of killed runtimes in the temporary directory", strayFiles().length - strays);
    expect(problems).toEqual({});
  },
  FILLED_MS + FORM.minutes * 60_000 + AFTERWARDS_MS,
);
