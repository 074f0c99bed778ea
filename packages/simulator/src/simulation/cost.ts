/** Measures the cost of the engine's periodic work, as CPU time and queries, with growing numbers of sandboxes. */
import process from "node:process";
import { StatementSync } from "node:sqlite";
import { NUMBERS, type Numbers, type SandboxId } from "@holdfast/contract";
import type { EngineApi, SandboxRecord } from "@holdfast/engine";
import { Faults } from "../schedule/armed-faults.ts";
import { Random } from "../schedule/random.ts";
import { VirtualTime } from "../time/virtual-time.ts";
import { SimulatedDatabase } from "../world/database.ts";
import { Host } from "../world/host.ts";
import { Mirror } from "../world/mirror.ts";
import { Process } from "../world/process.ts";
import { engineOf, SimulatedIds } from "../world/server.ts";
import { Durability } from "../world/server-store.ts";

const MINUTE_MS = 60_000;
/** Maximum duration of one step of the measurement, on the virtual clock. */
const ROUND_MS = 10 * MINUTE_MS;
const INSERTED_AT_ONCE = 500;
const TRIES = 5;

interface Cost {
  /** CPU time of this thread only, so that other load on the machine does not count. */
  readonly cpuMs: number;
  readonly queries: number;
}

/** Costs with a certain number of sandboxes (`records`), all running and idle. */
interface CostRow {
  readonly records: number;
  /** Cost of starting a server that recovers all sandboxes, after the previous server was killed. */
  readonly start: Cost;
  readonly audit: Cost;
  readonly sweep: Cost;
  /** Cost of all periodic work in an idle minute. */
  readonly minute: Cost;
}

let queries = 0;

/** Counts every SQL statement that this thread runs. */
function countQueries(): void {
  for (const verb of ["run", "get", "all"] as const) {
    const original = StatementSync.prototype[verb] as (...given: never[]) => unknown;
    Object.assign(StatementSync.prototype, {
      [verb](this: StatementSync, ...given: never[]) {
        queries += 1;
        return original.apply(this, given);
      },
    });
  }
}

export async function costOf(counts: readonly number[]): Promise<CostRow[]> {
  countQueries();
  const rows: CostRow[] = [];
  // The first count is measured twice and the first result is discarded, because code is compiled when it first runs.
  for (const [index, records] of [counts[0] ?? 0, ...counts].entries()) {
    const row = await rowOf(records);
    if (index > 0) rows.push(row);
  }
  return rows;
}

async function rowOf(records: number): Promise<CostRow> {
  const time = new VirtualTime();
  const database = await SimulatedDatabase.open();
  const faults = new Faults(() => undefined);
  const host = new Host({ time, random: new Random(1), faults, report: () => undefined, keepsMemory: true });
  await fill(database, host, records);
  const engine = engineWith({ time, database, faults, host, records });
  const measure = async (work: () => Promise<unknown>): Promise<Cost> => {
    const [since, before] = [process.threadCpuUsage(), queries];
    await done(time, work());
    const { user, system } = process.threadCpuUsage(since);
    return { cpuMs: (user + system) / 1_000, queries: queries - before };
  };
  const row = {
    records,
    start: await measure(() => engine.start()),
    audit: await cheapest(() => measure(() => engine.audit())),
    sweep: await cheapest(() => measure(() => engine.cleanup({ dryRun: false, emergency: false }))),
    minute: await cheapest(() => measure(() => time.pause(MINUTE_MS))),
  };
  const { sandboxes } = await engine.stats();
  if (sandboxes.ready !== records) throw new Error(`of ${records} sandboxes ${sandboxes.ready} are ready`);
  await done(time, engine.stop());
  await database.close();
  return row;
}

/** Returns the smallest cost of a few runs, because other load on the machine only increases the cost. */
async function cheapest(measure: () => Promise<Cost>): Promise<Cost> {
  const costs: Cost[] = [];
  while (costs.length < TRIES) costs.push(await measure());
  return costs.reduce((least, cost) => (cost.cpuMs < least.cpuMs ? cost : least));
}

/** Lets virtual time pass until `work` has completed. */
async function done(time: VirtualTime, work: Promise<unknown>): Promise<void> {
  let isOver = false;
  const over = work.finally(() => {
    isOver = true;
  });
  await time.quiet();
  await time.pass(ROUND_MS, () => !isOver);
  if (!isOver) throw new Error(`it took more than ${ROUND_MS} ms`);
  await over;
}

/** Creates running sandboxes and their records, in the state in which a server leaves them when it ends. */
async function fill(database: SimulatedDatabase, host: Host, count: number): Promise<void> {
  const records = Array.from({ length: count }, (_, index) => recordOf(host, index));
  for (let from = 0; from < count; from += INSERTED_AT_ONCE)
    await database.store.commit({
      changes: records
        .slice(from, from + INSERTED_AT_ONCE)
        .map((record) => ({ kind: "sandbox.insert", record })),
      counters: { created: Math.min(INSERTED_AT_ONCE, count - from) },
    });
}

function recordOf(host: Host, index: number): SandboxRecord {
  const id = `sbx_${String(index).padStart(16, "0")}` as SandboxId;
  const at = host.time.now();
  const instance = host.reference(host.spawn({ sandboxId: id, generation: 1 }));
  return {
    id,
    name: `name-${index}`,
    nameHeld: true,
    phase: { name: "running" },
    generation: 1,
    memorySince: 1,
    lease: { state: "held", generation: 1, startupDeadline: at },
    instance,
    spec: {
      image: "host",
      env: {},
      cwd: null,
      resources: { memoryMb: 512, pids: 512, cpus: 1 },
      lifecycle: {},
      labels: {},
    },
    createdAt: at,
    lastActivityAt: at,
    transitionedAt: at,
    endedAt: null,
    owner: null,
    execsStarted: 0,
    forkedFrom: null,
    mounts: [],
    restarts: null,
    revision: 0,
  };
}

/** Creates an engine with production numbers, except for the maximum number of sandboxes. */
function engineWith(world: {
  time: VirtualTime;
  database: SimulatedDatabase;
  faults: Faults;
  host: Host;
  records: number;
}): EngineApi {
  const { time, database, faults, host, records } = world;
  const numbers: Numbers = { ...NUMBERS, maxSandboxes: 2 * records };
  const nothing = () => undefined;
  const server = new Process({
    number: 1,
    callsAtOnce: Number.POSITIVE_INFINITY,
    time,
    faults,
    onDeath: nothing,
    onSpin: nothing,
  });
  const mirror = new Mirror();
  const durability = new Durability({ database, time, mirror, matters: false });
  const ids = new SimulatedIds(new Random(2));
  const parts = { time, database, durability, mirror, faults, host, ids, numbers, process: server };
  return engineOf({ ...parts, blackout: nothing, report: nothing, note: nothing });
}
