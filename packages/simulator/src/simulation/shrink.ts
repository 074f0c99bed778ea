import type { Violation } from "../invariants/watch.ts";
import type { Schedule, Step } from "../schedule/schedule.ts";

/** Maximum number of attempts, so that a failure is always reported soon. */
const TRIES = 600;

type Run = (schedule: Schedule) => Promise<Violation | null>;

/**
 * Finds a smaller schedule that leads to the same violation. First removes steps, many at a time and then one by one.
 * Then removes pauses. A removal that makes the violation disappear is undone.
 */
export async function shrink(schedule: Schedule, violation: Violation, run: Run): Promise<Schedule> {
  let best = upTo(schedule, violation.step);
  let tries = 0;
  const breaks = async (steps: Step[]): Promise<boolean> => {
    if (tries >= TRIES) return false;
    tries += 1;
    const candidate = { ...best, steps };
    if ((await run(candidate))?.invariant !== violation.invariant) return false;
    best = candidate;
    return true;
  };
  if (!(await breaks(best.steps))) best = schedule;
  for (let size = Math.ceil(best.steps.length / 2); size >= 1; size = size === 1 ? 0 : Math.ceil(size / 2))
    await leaveOut(size, () => best.steps, breaks);
  await leaveOut(1, () => best.steps, breaks);
  await hurry(() => best.steps, breaks);
  return best;
}

/** Returns the schedule up to the step of the violation; later steps are irrelevant. */
const upTo = (schedule: Schedule, step: number): Schedule => ({
  ...schedule,
  steps: schedule.steps.slice(0, step + 1),
});

type Breaks = (steps: Step[]) => Promise<boolean>;

async function leaveOut(size: number, steps: () => Step[], breaks: Breaks): Promise<void> {
  for (let at = Math.max(0, steps().length - size); ; at -= size) {
    const from = Math.max(0, at);
    const rest = steps().toSpliced(from, size);
    // The removed steps may have mattered only because of the time they took. So the schedule is also tried with a
    // pause of that length in place of the steps.
    if (!(await breaks(rest))) await breaks(waited(rest, from, taken(steps().slice(from, from + size))));
    if (from === 0) return;
  }
}

const taken = (steps: readonly Step[]): number => steps.reduce((sum, { after }) => sum + after, 0);

const waited = (steps: Step[], at: number, ms: number): Step[] =>
  steps.map((step, index) => (index === at ? { ...step, after: step.after + ms } : step));

async function hurry(steps: () => Step[], breaks: Breaks): Promise<void> {
  for (const [index, { after }] of steps().entries()) {
    const wait = (ms: number) => steps().map((step, at) => (at === index ? { ...step, after: ms } : step));
    if (after > 0 && !(await breaks(wait(0)))) await breaks(wait(Math.ceil(after / 1_000) * 1_000));
  }
}
