import fc from "fast-check";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { isLong } from "../../../../test/setup/long.ts";
import { drawParams, FAULTS } from "../schedule/fault-table.ts";
import { Random } from "../schedule/random.ts";
import { type Act, type Step, scheduleOf } from "../schedule/schedule.ts";
import { emptyTally, neverFired, Runner } from "./campaign.ts";

/** Far above the usual duration, because the machine may be busy. */
const PATIENCE_MS = 900_000;
const SCHEDULES = isLong ? 2_000 : 120;
const STEPS = 40;

let runner: Runner;
beforeAll(async () => {
  runner = await Runner.open();
});
afterAll(() => runner.close());

describe("the engine in a hostile world", () => {
  it(
    isLong
      ? "keeps its promises in thousands of schedules, in which every kind of fault strikes"
      : "keeps its promises in hundreds of schedules",
    async () => {
      const tally = await runner.runSeeds({
        from: 1,
        count: SCHEDULES,
        steps: STEPS,
        continueOnFailure: true,
      });
      expect(tally.failures).toEqual([]);
      if (isLong) expect(neverFired(tally)).toEqual([]);
    },
    PATIENCE_MS,
  );

  it(
    "keeps its promises for arbitrary steps in arbitrary order",
    async () => {
      const schedules = fc.record({
        seed: fc.nat(),
        limits: fc.constant({
          launchesAtOnce: 2,
          execsPerSandbox: 2,
          thrifty: false,
          standby: "memory" as const,
        }),
        steps: fc.array(anyStep(), { maxLength: 25 }),
      });
      const keepsThem = fc.asyncProperty(schedules, async (schedule) => {
        expect((await runner.run(schedule)).violation).toBeNull();
      });
      await fc.assert(keepsThem, { numRuns: 60, seed: 1 });
    },
    PATIENCE_MS,
  );
});

describe("a schedule", () => {
  it(
    "replays exactly, on another database too",
    async () => {
      const other = await Runner.open();
      const hashes = async (one: Runner) => {
        const all: string[] = [];
        for (let seed = 1; seed <= 20; seed += 1)
          all.push((await one.run(scheduleOf(seed, STEPS), { trace: true })).hash);
        return all;
      };
      const first = await hashes(runner);
      expect(await hashes(other)).toEqual(first);
      expect(new Set(first).size).toBe(first.length);
      await other.close();
    },
    PATIENCE_MS,
  );

  it("is data: it is the same after serialization", async () => {
    const schedule = scheduleOf(3, STEPS);
    const again = JSON.parse(JSON.stringify(schedule));
    const [one, two] = [
      await runner.run(schedule, { trace: true }),
      await runner.run(again, { trace: true }),
    ];
    expect(two.hash).toBe(one.hash);
  });

  it("has no strikes before it ran", () => {
    expect(neverFired(emptyTally())).toEqual(FAULTS.map(({ name }) => name));
  });
});

const orNull = (numbers: fc.Arbitrary<number>): fc.Arbitrary<number | null> =>
  fc.option(numbers, { nil: null });

/**
 * Generates steps about a few sandboxes and execs, most of which were never created, so that invalid requests are made
 * as well.
 */
function anyStep(): fc.Arbitrary<Step> {
  const box = fc.nat(2);
  const exec = fc.integer({ min: 3, max: 6 });
  const drive = fc.integer({ min: 9, max: 10 });
  const faults = fc
    .tuple(fc.constantFrom(...FAULTS.map(({ name }) => name)), fc.nat())
    .map(([fault, seed]): Act => ({ do: "fault", fault, params: drawParams(fault, new Random(seed)) }));
  const acts: fc.Arbitrary<Act>[] = [
    fc.record({
      do: fc.constant("create"),
      box,
      name: orNull(fc.nat(1)),
      key: orNull(fc.nat(1)),
      ifExists: fc.constantFrom("return", "fail"),
      wait: fc.boolean(),
      image: fc.constant("host"),
      owner: orNull(fc.nat(1)),
      coldStart: fc.boolean(),
      ttlMs: fc.constant(null),
      disposable: fc.boolean(),
      idleStandbyMs: fc.constantFrom(null, null, 2_000),
      from: orNull(fc.integer({ min: 7, max: 8 })),
      mounts: fc.array(fc.record({ drive, path: fc.nat(2) }), { maxLength: 2 }),
    }),
    fc.record({
      do: fc.constant("drive"),
      drive,
      name: orNull(fc.nat(1)),
      sized: fc.boolean(),
      ifExists: fc.constantFrom("return", "fail"),
    }),
    fc.record({ do: fc.constant("mount"), box, drive, path: fc.nat(2), readOnly: fc.boolean() }),
    fc.record({ do: fc.constantFrom("unmount", "write-at"), box, path: fc.nat(2) }),
    fc.record({ do: fc.constant("undrive"), drive, force: fc.boolean() }),
    fc.record({ do: fc.constant("show-drive"), drive }),
    fc.record({
      do: fc.constant("exec"),
      exec,
      box,
      command: fc.record({
        kind: fc.constant("run"),
        ms: orNull(fc.nat(10_000)),
        exitCode: fc.nat(3),
        prints: fc.nat(2),
      }),
      timeoutMs: orNull(fc.integer({ min: 1, max: 8_000 })),
      hasId: fc.boolean(),
      key: fc.constant(null),
      stdin: fc.constant(null),
      openStdin: fc.constant(false),
      waitMs: orNull(fc.nat(10_000)),
      keepAwake: fc.boolean(),
      onWake: fc.constantFrom(null, "argv", "signal"),
    }),
    fc.record({
      do: fc.constant("save"),
      save: fc.integer({ min: 7, max: 8 }),
      box,
      name: orNull(fc.nat(1)),
    }),
    fc.record({ do: fc.constant("unsave"), save: fc.integer({ min: 7, max: 8 }) }),
    fc.record({ do: fc.constantFrom("pause", "resume", "standby", "wake"), box }),
    fc.record({
      do: fc.constant("read"),
      box,
      path: fc.constantFrom("/tmp/a", "/proc/a"),
      wake: fc.boolean(),
    }),
    fc.record({ do: fc.constant("wait"), exec, waitMs: fc.nat(10_000) }),
    fc.record({ do: fc.constantFrom("cancel", "signal", "show-exec"), exec }),
    fc.record({ do: fc.constant("output"), exec, follow: fc.boolean() }),
    fc.record({ do: fc.constant("delete"), box, waitMs: fc.nat(10_000) }),
    fc.record({ do: fc.constantFrom("verify", "show", "write", "execs"), box }),
    fc.record({ do: fc.constantFrom("list", "stats", "events", "audit", "leave") }),
    fc.record({ do: fc.constant("again"), of: fc.nat(6) }),
    faults,
  ];
  return fc.record({ after: fc.oneof(fc.constant(0), fc.nat(8_000)), act: fc.oneof(...acts) });
}
