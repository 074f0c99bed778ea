import type { Violation } from "../invariants/watch.ts";
import { FAULTS, type FaultName } from "../schedule/fault-table.ts";
import { type Schedule, scheduleOf } from "../schedule/schedule.ts";
import { SimulatedDatabase } from "../world/database.ts";
import { type Outcome, Simulation } from "./simulation.ts";

export interface Failure {
  readonly seed: number;
  readonly violation: Violation;
}

/** The results of many schedules. */
export interface Tally {
  schedules: number;
  virtualMs: number;
  fired: Partial<Record<FaultName, number>>;
  failures: Failure[];
}

export const emptyTally = (): Tally => ({ schedules: 0, virtualMs: 0, fired: {}, failures: [] });

function addOutcome(tally: Tally, seed: number, { violation, fired, virtualMs }: Outcome): void {
  tally.schedules += 1;
  tally.virtualMs += virtualMs;
  for (const [kind, count] of fired) tally.fired[kind] = (tally.fired[kind] ?? 0) + count;
  if (violation !== null) tally.failures.push({ seed, violation });
}

export function addTally(tally: Tally, more: Tally): void {
  tally.schedules += more.schedules;
  tally.virtualMs += more.virtualMs;
  for (const { name } of FAULTS) tally.fired[name] = (tally.fired[name] ?? 0) + (more.fired[name] ?? 0);
  tally.failures.push(...more.failures);
}

/** Returns the faults that never struck in these schedules. */
export const neverFired = (tally: Tally): FaultName[] =>
  FAULTS.map(({ name }) => name).filter((name) => (tally.fired[name] ?? 0) === 0);

/** Runs schedules one after another on one database. */
export class Runner {
  readonly #database: SimulatedDatabase;

  private constructor(database: SimulatedDatabase) {
    this.#database = database;
  }

  static async open(): Promise<Runner> {
    return new Runner(await SimulatedDatabase.open());
  }

  run(schedule: Schedule, options: { trace: boolean } = { trace: false }): Promise<Outcome> {
    return new Simulation(this.#database, schedule, options).run();
  }

  /** Runs the schedules of these seeds. Stops at the first failure unless `continueOnFailure` is set. */
  async runSeeds(
    order: { from: number; count: number; steps: number; continueOnFailure: boolean },
    onSeed: (seed: number) => void = () => undefined,
  ): Promise<Tally> {
    const tally = emptyTally();
    for (let seed = order.from; seed < order.from + order.count; seed += 1) {
      onSeed(seed);
      addOutcome(tally, seed, await this.run(scheduleOf(seed, order.steps)));
      if (tally.failures.length > 0 && !order.continueOnFailure) break;
    }
    return tally;
  }

  close(): Promise<void> {
    return this.#database.close();
  }
}
