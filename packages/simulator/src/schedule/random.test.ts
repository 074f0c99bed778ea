import { describe, expect, it } from "vitest";
import { Random } from "./random.ts";

const drawn = (...seed: number[]) => {
  const random = new Random(...seed);
  return Array.from({ length: 5 }, () => random.below(1_000_000));
};

describe("a seed", () => {
  it("gives the same numbers on every machine", () => {
    expect(drawn(1)).toEqual(drawn(1));
    expect(drawn(1)).toMatchInlineSnapshot(`
      [
        7971,
        897997,
        495156,
        524456,
        610135,
      ]
    `);
  });

  it("gives different numbers than other seeds, also beyond 32 bits", () => {
    expect(drawn(2)).not.toEqual(drawn(1));
    expect(drawn(1 + 2 ** 32)).not.toEqual(drawn(1));
    expect(drawn(1, 2)).not.toEqual(drawn(1, 3));
  });

  it("chooses items in proportion to their weights", () => {
    const random = new Random(7);
    const items = [
      { weight: 1, name: "rare" },
      { weight: 9, name: "common" },
    ];
    const rare = Array.from({ length: 2_000 }, () => random.weighted(items)).filter(
      (one) => one.name === "rare",
    );
    expect(rare.length).toBeGreaterThan(100);
    expect(rare.length).toBeLessThan(300);
  });
});
