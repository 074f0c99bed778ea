import { describe, expect, it } from "vitest";
import { absentNear, type HeldReader, holdOf, untilReturn } from "./hold-decision.ts";

const reader = (cursor: number, until: number, isHere = true): HeldReader => ({ cursor, until, isHere });

describe("the hold that serves all readers", () => {
  it("begins at the slowest reader and lasts until the last of them no longer counts", () => {
    expect(holdOf([reader(500, 90), reader(200, 70), reader(300, 80)], 10)).toEqual({
      cursor: 200,
      until: 90,
    });
  });

  it("ignores readers for which the command no longer waits", () => {
    expect(holdOf([reader(200, 10), reader(500, 90)], 10)).toEqual({ cursor: 500, until: 90 });
    expect(holdOf([reader(200, 10)], 10)).toBeNull();
    expect(holdOf([], 10)).toBeNull();
  });
});

describe("a reader that leaves", () => {
  it("is waited for no longer than it would have been if it had stayed", () => {
    expect(untilReturn(reader(0, 60), 0, 15)).toBe(15);
    expect(untilReturn(reader(0, 60), 55, 15)).toBe(60);
  });

  it("is recognized by its position when it comes back, and a reader that is there is never replaced", () => {
    const [near, far, here] = [reader(90, 60, false), reader(10, 60, false), reader(80, 60)];
    expect(absentNear([far, here, near], 80)).toBe(near);
    expect(absentNear([here], 80)).toBeNull();
  });
});
