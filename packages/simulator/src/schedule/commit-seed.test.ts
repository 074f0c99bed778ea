import { describe, expect, it } from "vitest";
import { seedOf, seedOfCommit } from "./commit-seed.ts";

describe("the seed of a commit", () => {
  it("differs between commits and is the same for one commit", () => {
    const [one, other] = [
      "0123456789abcdef0123456789abcdef01234567",
      "fedcba98765432100123456789abcdef01234567",
    ];
    expect(seedOf(one ?? "")).toBe(seedOf(one ?? ""));
    expect(seedOf(one ?? "")).not.toBe(seedOf(other ?? ""));
    expect(Number.isSafeInteger(seedOf("f".repeat(40)) + 1_000_000)).toBe(true);
  });

  it("can be replaced to repeat the run of another commit", () => {
    expect(seedOfCommit({ HOLDFAST_SIMULATION_SEED: "42" })).toEqual({
      seed: 42,
      from: "HOLDFAST_SIMULATION_SEED",
    });
    expect(() => seedOfCommit({ HOLDFAST_SIMULATION_SEED: "many" })).toThrow("whole number");
  });
});
