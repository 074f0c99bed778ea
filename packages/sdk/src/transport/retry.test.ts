import { describe, expect, it } from "vitest";
import { errorOf, unreachable } from "../errors.ts";
import { backoff, type Failure, PATIENCE, retryDelay } from "./retry.ts";

const where = { method: "POST", url: "http://127.0.0.1:1/v1/x" };
const failed = (facts: Partial<Failure>): Failure => ({
  error: unreachable(where, "unknown", new Error("reset")),
  tries: 1,
  failingMs: 0,
  idempotent: true,
  waiting: false,
  acquainted: true,
  patience: PATIENCE,
  random: 0.5,
  ...facts,
});
const said = (status: number, facts: object = {}) =>
  errorOf(
    where,
    status,
    JSON.stringify({ error: { code: "x", message: "x", retryable: true, dispatched: "unknown", ...facts } }),
  );

describe("a failed request", () => {
  it("is retried only if that is harmless", () => {
    const table: [string, Partial<Failure>, boolean][] = [
      ["idempotent, connection lost", {}, true],
      ["not idempotent, connection lost", { idempotent: false }, false],
      ["not idempotent, never connected", { idempotent: false, error: unreachable(where, "no", "") }, true],
      ["503", { error: said(503) }, true],
      ["503, not idempotent", { error: said(503), idempotent: false }, false],
      [
        "503, not idempotent, not dispatched",
        { error: said(503, { dispatched: "no" }), idempotent: false },
        true,
      ],
      ["429", { error: said(429) }, false],
      ["429 of a reader", { error: said(429, { code: "too_many_readers" }) }, true],
      ["429 of a call that a wake would have held", { error: said(429, { code: "too_many_held" }) }, true],
      ["503 of a wake that takes long", { error: said(503, { code: "wake_timeout" }) }, true],
      ["503 of a standby that failed", { error: said(503, { code: "standby_failed" }) }, false],
      [
        "503 of a checkpoint that failed",
        { error: said(503, { code: "checkpoint_failed", dispatched: "no" }), idempotent: false },
        false,
      ],
      ["502 of Holdfast", { error: said(502) }, false],
      ["502 of a proxy", { error: errorOf(where, 502, "Bad Gateway") }, true],
      ["500", { error: said(500, { retryable: false }) }, false],
      ["an error of ours", { error: new RangeError("too large") }, false],
    ];
    expect(table.map(([name, facts]) => [name, retryDelay(failed(facts)) !== null])).toEqual(
      table.map(([name, , expected]) => [name, expected]),
    );
  });

  it("is given up when its time budget is spent, sooner for a server that never answered", () => {
    expect(retryDelay(failed({ tries: 9, failingMs: 20_000 }))).not.toBeNull();
    expect(retryDelay(failed({ tries: 9, failingMs: 31_000 }))).toBeNull();
    expect(retryDelay(failed({ tries: 4, failingMs: 2_000, acquainted: false }))).toBeNull();
    expect(retryDelay(failed({ tries: 9, failingMs: 11_000, error: said(503) }))).toBeNull();
    expect(
      retryDelay(failed({ tries: 9, failingMs: 11_000, error: said(503), waiting: true })),
    ).not.toBeNull();
  });

  it("waits longer before each attempt, within bounds and with jitter", () => {
    expect([1, 2, 3, 20].map((tries) => backoff(tries, 0))).toEqual([25, 50, 100, 1000]);
    expect([1, 20].map((tries) => backoff(tries, 1))).toEqual([50, 2000]);
  });
});
