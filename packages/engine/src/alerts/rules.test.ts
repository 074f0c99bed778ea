import { ALERT_KINDS, type AlertKind, NUMBERS, type Numbers, type SandboxId } from "@holdfast/contract";
import fc from "fast-check";
import { describe, expect, it } from "vitest";
import type { Reading, Readings } from "../ports/api.ts";
import {
  type AlertChange,
  type AlertState,
  evaluate,
  keyOf,
  limitsOf,
  NOTHING_WRONG,
  RULES,
} from "./rules.ts";

const EVERY = NUMBERS.alertEveryMs;
/** All alerts are on. */
const numbers: Numbers = {
  ...NUMBERS,
  ...{ alertActive: 20, clearActive: 15, targetActive: 5 },
  ...{ alertEscalationActive: 50, clearEscalationActive: 40, alertRunningMs: 300_000 },
};

const reading = (value: number | null, over: Partial<Reading> = {}): Reading => ({
  kind: "capacity",
  subject: "disk",
  sandboxId: null,
  value,
  message: "so much",
  ...over,
});

/** The changes that result from a sequence of values, one per evaluation. */
function story(rounds: readonly Readings[], from: AlertState = NOTHING_WRONG, given = numbers) {
  let state = from;
  const changes: (AlertChange & { round: number })[] = [];
  for (const [round, readings] of rounds.entries()) {
    const now = (state.at ?? 1_000_000) + EVERY;
    const next = evaluate(state, readings, now, given);
    state = next.state;
    changes.push(...next.changes.map((change) => ({ ...change, round })));
  }
  return { state, changes, reported: changes.map(({ type, round }) => `${type} in ${round}`) };
}

const disk = (value: number | null): Readings => ({ capacity: [reading(value)] });
const times = (count: number, readings: Readings): Readings[] =>
  Array.from({ length: count }, () => readings);

describe("an alert", () => {
  it("fires once its value has been above the threshold for its time", () => {
    expect(story(times(3, disk(81))).reported).toEqual(["fired in 2"]);
    expect(story(times(20, disk(80))).reported).toEqual([]);
    expect(story([...times(2, disk(81)), disk(80), ...times(2, disk(81))]).reported).toEqual([]);
  });

  it("does not change between its clear value and its threshold, and clears at the clear value", () => {
    const firing = times(3, disk(90));
    expect(story([...firing, ...times(50, disk(80)), ...times(50, disk(75.1))]).reported).toEqual([
      "fired in 2",
    ]);
    expect(story([...firing, ...times(4, disk(75))]).reported).toEqual(["fired in 2", "cleared in 6"]);
    const wavering = [...times(3, disk(75)), disk(76), ...times(3, disk(75))];
    expect(story([...firing, ...wavering]).reported).toEqual(["fired in 2"]);
  });

  it("neither fires nor clears while its value can't be read", () => {
    const firing = times(3, disk(90));
    for (const unread of [disk(null), { capacity: null }, {}]) {
      expect(story(times(50, unread)).reported).toEqual([]);
      expect(story([...firing, ...times(50, unread)]).reported).toEqual(["fired in 2"]);
      // Time without a reading does not count.
      expect(story([disk(90), ...times(9, unread), disk(90)]).reported).toEqual([]);
    }
  });

  it("clears when its subject is gone", () => {
    const sandboxId = "sbx_0123456789abcdef" as SandboxId;
    const held: Readings = {
      lease_exhausted: [reading(1, { kind: "lease_exhausted", subject: sandboxId, sandboxId })],
    };
    const { changes } = story([...times(3, held), ...times(4, { lease_exhausted: [] })]);
    expect(changes.map(({ type, key }) => [type, key])).toEqual([
      ["fired", `lease_exhausted:${sandboxId}`],
      ["cleared", `lease_exhausted:${sandboxId}`],
    ]);
    expect(changes[1]?.reading).toBeNull();
  });

  it("is separate for each subject", () => {
    const both = (first: number, second: number): Readings => ({
      capacity: [reading(first), reading(second, { subject: "memory" })],
    });
    const { changes } = story([...times(3, both(90, 10)), ...times(4, both(10, 90))]);
    expect(changes.map(({ type, key }) => `${type} ${key}`)).toEqual([
      "fired capacity:disk",
      "fired capacity:memory",
      "cleared capacity:disk",
    ]);
  });

  it("restarts its time after one good reading", () => {
    const active = (value: number): Readings => ({
      active_escalation: [reading(value, { kind: "active_escalation", subject: null })],
    });
    const half = NUMBERS.alertEscalationForMs / EVERY;
    expect(story(times(half + 1, active(51))).reported).toEqual([`fired in ${half}`]);
    expect(story([...times(half, active(51)), active(50), ...times(half, active(51))]).reported).toEqual([]);
  });

  it("survives a restart without being reported again, and clears in its time", () => {
    const track = { kind: "capacity", subject: "disk", stage: "firing", calmMs: null } as const;
    const restored: AlertState = { at: null, tracks: new Map([["capacity:disk", track]]) };
    expect(story(times(50, disk(90)), restored).reported).toEqual([]);
    expect(story(times(4, disk(10)), restored).reported).toEqual(["cleared in 3"]);
  });

  it("does not alternate if its clear value is set above its threshold", () => {
    const odd: Numbers = { ...numbers, alertCapacityPercent: 10, clearCapacityPercent: 75 };
    expect(story(times(100, disk(50)), NOTHING_WRONG, odd).reported).toEqual(["fired in 2"]);
  });
});

describe("the default numbers", () => {
  const OFF: readonly AlertKind[] = ["too_many_active", "active_escalation", "running_long"];

  it("raise no alert about how many sandboxes are awake, or for how long", () => {
    const busy: Readings = Object.fromEntries(
      OFF.map((kind) => [kind, [reading(10_000, { kind, subject: null })]]),
    );
    expect(story(times(500, busy), NOTHING_WRONG, NUMBERS).reported).toEqual([]);
  });

  it("clear such an alert that fired under other numbers", () => {
    const fired = (kind: AlertKind) =>
      [kind, { kind, subject: null, stage: "firing", calmMs: null }] as const;
    const before: AlertState = { at: null, tracks: new Map(OFF.map(fired)) };
    const busy: Readings = Object.fromEntries(
      OFF.map((kind) => [kind, [reading(10_000, { kind, subject: null })]]),
    );
    const { changes } = story(times(5, busy), before, NUMBERS);
    expect(changes.map(({ type, kind }) => `${type} ${kind}`).sort()).toEqual(
      OFF.map((kind) => `cleared ${kind}`).sort(),
    );
  });
});

describe("the rules", () => {
  const subjectOf: Partial<Record<AlertKind, string>> = { cleanup_not_running: "stale", capacity: "disk" };

  it.each(ALERT_KINDS)("%s fires above its threshold only, and clears at its clear value", (kind) => {
    const subject = subjectOf[kind] ?? null;
    const { threshold, clearBelow, forMs, clearForMs } = limitsOf(kind, subject, numbers);
    const at = (value: number): Readings => ({ [kind]: [reading(value, { kind, subject })] });
    const long = Math.ceil(forMs / EVERY) + 1;
    expect(story(times(long + 9, at(threshold))).reported).toEqual([]);
    const calm = Math.ceil(clearForMs / EVERY) + 1;
    const { reported } = story([...times(long, at(threshold + 1)), ...times(calm, at(clearBelow))]);
    expect(reported).toEqual([`fired in ${long - 1}`, `cleared in ${long + calm - 1}`]);
  });

  it.each([
    ["timeout_rate", null, 5, 3, 2],
    ["too_many_active", null, 20, 15, 5],
    ["active_escalation", null, 50, 40, 5],
    ["stuck", "sbx_0", 600_000, 600_000, null],
    ["repeated_timeouts", "sbx_0", 3, 1, 0],
    ["leak", null, 0, 0, 0],
    ["cleanup_not_running", "stale", 620_000, 320_000, 300_000],
    ["cleanup_not_running", "reconcile", 7_220_000, 3_620_000, 3_600_000],
    ["audit_overdue", null, 7_220_000, 3_620_000, 3_600_000],
    ["observation_overdue", null, 30_000, 25_000, 5_000],
    ["capacity", "disk", 80, 75, null],
  ] as const)("%s (%s) fires above %d, clears at %d, and should be %d", (kind, subject, ...expected) => {
    const { threshold, clearBelow, target } = limitsOf(kind, subject, numbers);
    expect([threshold, clearBelow, target]).toEqual(expected);
  });

  it("rate leaks and failures of monitoring as critical, and long runs as informational", () => {
    const critical = ALERT_KINDS.filter((kind) => RULES[kind].severity === "critical");
    expect(critical).toEqual([
      "active_escalation",
      "leak",
      "cleanup_not_running",
      "audit_overdue",
      "observation_overdue",
      "lease_exhausted",
      "lease_quarantined",
      "capacity_unmeasured",
      "launches_suspended",
    ]);
    expect(RULES.running_long.severity).toBe("info");
  });

  it("accept an unknown layer of cleaning", () => {
    expect(limitsOf("cleanup_not_running", "gone", numbers).threshold).toBe(2 * EVERY);
  });
});

/** A round: its true length, the clock jump during it, and the readings. */
interface Step {
  ms: number;
  jumpMs: number;
  value: number | null;
}

const aJump = fc.oneof(
  { weight: 6, arbitrary: fc.constant(0) },
  { weight: 1, arbitrary: fc.integer({ min: -1e9, max: 1e9 }) },
);
const aStep = (value: fc.Arbitrary<number | null>): fc.Arbitrary<Step> =>
  fc.record({ ms: fc.integer({ min: EVERY, max: 3 * EVERY }), jumpMs: aJump, value });
const anyValue = fc.oneof(
  fc.constantFrom(10, 75, 75.1, 80, 80.1, 99, null),
  fc.double({ min: 0, max: 100, noNaN: true }),
);
const someSteps = (value = anyValue) => fc.array(aStep(value), { minLength: 1, maxLength: 60 });

interface Seen {
  /** True time. */
  at: number;
  value: number | null;
  changes: AlertChange[];
}

function live(steps: readonly Step[]): Seen[] {
  let state = NOTHING_WRONG;
  let at = 0;
  let clock = 1_000_000_000;
  return steps.map(({ ms, jumpMs, value }) => {
    at += ms;
    clock += ms + jumpMs;
    const next = evaluate(state, disk(value), clock, numbers);
    state = next.state;
    return { at, value, changes: next.changes };
  });
}

describe("for any readings and clock jumps", () => {
  const { threshold, clearBelow, forMs, clearForMs } = limitsOf("capacity", "disk", numbers);

  /** How long, in true time, all known values have satisfied the condition. */
  const heldFor = (seen: readonly Seen[], index: number, isSo: (value: number) => boolean): number => {
    const now = seen[index]?.at ?? 0;
    let since = now;
    for (let at = index; at >= 0; at -= 1) {
      const one = seen[at];
      if (one === undefined || (one.value !== null && !isSo(one.value))) break;
      if (one.value !== null) since = one.at;
    }
    return now - since;
  };

  it("no alert fires or clears early", () => {
    fc.assert(
      fc.property(someSteps(), (steps) => {
        const seen = live(steps);
        for (const [index, { changes }] of seen.entries())
          for (const { type } of changes) {
            if (type === "fired")
              expect(heldFor(seen, index, (value) => value > threshold)).toBeGreaterThanOrEqual(forMs);
            else
              expect(heldFor(seen, index, (value) => value <= clearBelow)).toBeGreaterThanOrEqual(clearForMs);
          }
      }),
    );
  });

  it.each([-1e9, 1e9])("a clock jump of %d ms costs at most one round", (jumpMs) => {
    const steady = { ms: EVERY, jumpMs: 0 };
    const rounds = (value: number, count: number): Step[] =>
      Array.from({ length: count }, (_, index) => ({ ...steady, jumpMs: index === 1 ? jumpMs : 0, value }));
    const seen = live([...rounds(99, 4), ...rounds(10, 5)]);
    const reported = seen.flatMap(({ changes }, round) => changes.map(({ type }) => `${type} in ${round}`));
    expect(reported).toEqual(jumpMs < 0 ? ["fired in 3", "cleared in 8"] : ["fired in 2", "cleared in 7"]);
  });

  it("an alert fires first, then clears and fires alternately", () => {
    fc.assert(
      fc.property(someSteps(), (steps) => {
        const types = live(steps).flatMap(({ changes }) => changes.map(({ type }) => type));
        expect(types).toEqual(types.map((_, index) => (index % 2 === 0 ? "fired" : "cleared")));
      }),
    );
  });

  it("no alert changes between its clear value and its threshold", () => {
    const within = fc.double({ min: clearBelow, max: threshold, minExcluded: true, noNaN: true });
    fc.assert(
      fc.property(someSteps(), someSteps(within), (before, steps) => {
        const seen = live([...before, ...steps]).slice(before.length);
        expect(seen.flatMap(({ changes }) => changes)).toEqual([]);
      }),
    );
  });

  it("a value that stays bad fires once, and one that stays good clears once", () => {
    const calm = (value: number) => times(20, disk(value)).map(() => ({ ms: EVERY, jumpMs: 0, value }));
    fc.assert(
      fc.property(someSteps(), fc.constantFrom(10, 99), (before, value) => {
        const seen = live([...before, ...calm(109 - value), ...calm(value)]);
        const late = seen.slice(before.length + 20).flatMap(({ changes }) => changes);
        expect(late.map(({ type, key }) => [type, key])).toEqual([
          [value === 99 ? "fired" : "cleared", keyOf({ kind: "capacity", subject: "disk" })],
        ]);
      }),
    );
  });

  it("no state is kept for healthy subjects", () => {
    fc.assert(
      fc.property(someSteps(fc.constantFrom(10, 99)), (steps) => {
        let state = NOTHING_WRONG;
        for (const { value } of steps)
          state = evaluate(state, disk(value), (state.at ?? 0) + EVERY, numbers).state;
        for (let round = 0; round < 5; round += 1)
          state = evaluate(state, disk(10), (state.at ?? 0) + EVERY, numbers).state;
        expect(state.tracks.size).toBe(0);
      }),
    );
  });
});
