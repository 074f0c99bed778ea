import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { isLong } from "../../../../test/setup/long.ts";
import { seedOfCommit } from "../schedule/commit-seed.ts";
import { Runner } from "./campaign.ts";

/** Far above the usual duration, because the machine may be busy. */
const PATIENCE_MS = 1_800_000;
const SIZES = isLong
  ? [
      { steps: 40, schedules: 400 },
      { steps: 60, schedules: 1_000 },
      { steps: 120, schedules: 300 },
    ]
  : [{ steps: 60, schedules: 150 }];

let runner: Runner;
beforeAll(async () => {
  runner = await Runner.open();
});
afterAll(() => runner.close());

describe("the engine in a hostile world of this commit", () => {
  it.each(SIZES)(
    "keeps its promises in $schedules schedules of $steps steps",
    async ({ steps, schedules }) => {
      const { seed, from } = seedOfCommit();
      console.log(
        `Seeds ${seed} to ${seed + schedules - 1}, from ${from}. ` +
          `The same again: npm run simulate -- --seed ${seed} --schedules ${schedules} --steps ${steps} --keep-going`,
      );
      const tally = await runner.runSeeds({ from: seed, count: schedules, steps, continueOnFailure: true });
      const found = tally.failures.map(
        ({ seed: failed, violation }) =>
          `${violation.invariant}: ${violation.what}. The smallest schedule: npm run simulate -- --seed ${failed} --schedules 1 --steps ${steps}`,
      );
      expect(found).toEqual([]);
    },
    PATIENCE_MS,
  );
});
