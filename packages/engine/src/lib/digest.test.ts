import { hash } from "node:crypto";
import { describe, expect, test } from "vitest";
import { digestOf } from "./digest.ts";

describe("a digest", () => {
  const value = { b: 1, a: { d: [2, 1], c: "x" } };

  test("is the same for the same values with keys in another order, at any depth", () => {
    expect(digestOf({ a: { c: "x", d: [2, 1] }, b: 1 }).text).toBe(digestOf(value).text);
  });

  test("differs for another value and for another order of a list", () => {
    expect(digestOf({ ...value, b: 2 }).text).not.toBe(digestOf(value).text);
    expect(digestOf({ ...value, a: { d: [1, 2], c: "x" } }).text).not.toBe(digestOf(value).text);
  });

  test("matches a digest that an earlier version stored for the same text", () => {
    expect(digestOf(value).matches(hash("sha256", JSON.stringify(value)))).toBe(true);
    expect(digestOf(value).matches(hash("sha256", "other"))).toBe(false);
  });
});
