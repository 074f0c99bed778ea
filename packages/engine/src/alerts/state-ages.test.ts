import { expect, it } from "vitest";
import { StateAges } from "./state-ages.ts";

it("the age grows by the elapsed time while the mark stays the same", () => {
  const ages = new StateAges();
  const look = (mark: string, livedMs: number) => ages.advance([{ key: "a", mark }], livedMs).get("a");
  expect(look("x", 99)).toBe(0);
  expect(look("x", 10)).toBe(10);
  expect(look("x", 0)).toBe(10);
  expect(look("x", 5)).toBe(15);
  expect(look("y", 5)).toBe(0);
  expect(look("x", 5)).toBe(0);
});

it("a known thing starts at its age, and one that left and came back starts again", () => {
  const ages = new StateAges();
  expect(ages.advance([{ key: "a", mark: "x", fromMs: 70 }], 10).get("a")).toBe(70);
  expect(ages.advance([{ key: "a", mark: "x", fromMs: 70 }], 10).get("a")).toBe(80);
  expect(ages.advance([], 10).size).toBe(0);
  expect(ages.advance([{ key: "a", mark: "x" }], 10).get("a")).toBe(0);
});
