import { newSandboxId } from "@holdfast/contract";
import fc from "fast-check";
import { describe, expect, it } from "vitest";
import { TimeoutWindow } from "./timeout-window.ts";

const WINDOW = 600_000;
const [one, other] = [newSandboxId(), newSandboxId()];
const window = () => new TimeoutWindow({ alertWindowMs: WINDOW });
const end = (at: number, timedOut = 0, sandboxId = one) => ({ at, sandboxId, ended: 1, timedOut });

describe("the timeout window", () => {
  it("counts ended execs, and timeouts by sandbox", () => {
    const counted = window();
    for (const each of [end(1_000), end(2_000, 1), end(2_000, 1, other), end(90_000, 1)]) counted.count(each);
    const { ended, timedOut, of } = counted.read(100_000);
    expect({ ended, timedOut }).toEqual({ ended: 4, timedOut: 3 });
    expect([...of]).toEqual([
      [one, 2],
      [other, 1],
    ]);
  });

  it("drops execs older than the window, and no others", () => {
    fc.assert(
      fc.property(
        fc.array(fc.integer({ min: 1, max: WINDOW }), { maxLength: 200 }),
        fc.integer({ min: 0, max: 2 * WINDOW }),
        (gaps, later) => {
          const counted = window();
          let at = 1e9;
          const ends = gaps.map((gap) => (at += gap));
          for (const each of ends) counted.count(end(each));
          const now = at + later;
          const { ended } = counted.read(now);
          const within = (ms: number) => ends.filter((each) => each > now - ms).length;
          expect(ended).toBeGreaterThanOrEqual(within(WINDOW));
          expect(ended).toBeLessThanOrEqual(within(WINDOW + counted.stepMs));
        },
      ),
    );
  });

  it("drops execs in the future after the clock was set back, and keeps counting", () => {
    const counted = window();
    for (let at = 1e9; at < 1e9 + WINDOW; at += 1_000) counted.count(end(at, 1));
    counted.count(end(1e8));
    counted.count(end(1e8, 1));
    expect(counted.read(1e8)).toMatchObject({ ended: 2, timedOut: 1 });
  });
});
