import { expect, it } from "vitest";
import { Ages } from "./ages.ts";

it("a thing grows by what was lived through for as long as its mark is the same", () => {
  const ages = new Ages();
  const look = (mark: string, livedMs: number) => ages.advance([{ key: "a", mark }], livedMs).get("a");
  expect(look("x", 99)).toBe(0);
  expect(look("x", 10)).toBe(10);
  expect(look("x", 0)).toBe(10);
  expect(look("x", 5)).toBe(15);
  expect(look("y", 5)).toBe(0);
  expect(look("x", 5)).toBe(0);
});

it("one that was there before begins with its age, and one that went and came is new", () => {
  const ages = new Ages();
  expect(ages.advance([{ key: "a", mark: "x", fromMs: 70 }], 10).get("a")).toBe(70);
  expect(ages.advance([{ key: "a", mark: "x", fromMs: 70 }], 10).get("a")).toBe(80);
  expect(ages.advance([], 10).size).toBe(0);
  expect(ages.advance([{ key: "a", mark: "x" }], 10).get("a")).toBe(0);
});
