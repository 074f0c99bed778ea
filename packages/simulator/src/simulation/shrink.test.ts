import fc from "fast-check";
import { describe, expect, it } from "vitest";
import { type Schedule, scheduleOf } from "../schedule/schedule.ts";
import { shrink } from "./shrink.ts";

describe("a failing schedule", () => {
  it("is reduced to the steps that make it fail, in their order and without their pauses", async () => {
    const seeds = fc.nat(1_000);
    const culprits = fc.uniqueArray(fc.nat(19), { minLength: 1, maxLength: 4 });
    await fc.assert(
      fc.asyncProperty(seeds, culprits, async (seed, guilty) => {
        const schedule = scheduleOf(seed, 20);
        const needed = guilty.toSorted((a, b) => a - b).map((index) => schedule.steps[index]?.act);
        const violation = { invariant: "broken", what: "", step: schedule.steps.length };
        const fails = ({ steps }: Schedule) => needed.every((act) => steps.some((step) => step.act === act));
        const smallest = await shrink(schedule, violation, async (one) => (fails(one) ? violation : null));
        expect(smallest.steps.map(({ act }) => act)).toEqual(needed);
        expect(smallest.steps.every(({ after }) => after === 0)).toBe(true);
      }),
      { numRuns: 50 },
    );
  });

  it("stays unchanged if no step can be removed", async () => {
    const schedule = scheduleOf(1, 6);
    const violation = { invariant: "broken", what: "", step: 6 };
    const smallest = await shrink(schedule, violation, async ({ steps }) =>
      steps.length === 6 ? violation : null,
    );
    expect(smallest.steps.map(({ act }) => act)).toEqual(schedule.steps.map(({ act }) => act));
  });
});
