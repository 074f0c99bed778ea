import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import { silent, unreachable } from "../errors.ts";
import { Outage } from "./calls.ts";
import { PATIENCE } from "./retry.ts";

const WHERE = { method: "GET", url: "http://127.0.0.1:1/v1/execs/exe_1" } as const;
const reset = () => unreachable(WHERE, "unknown", new Error("read ECONNRESET"));

/** The test advances the time of day; the short pauses between attempts are real. */
beforeEach(() => void vi.useFakeTimers({ toFake: ["performance"] }));
afterEach(() => void vi.useRealTimers());

function outageOf(silence: { ms: number }): Outage {
  return new Outage({
    call: { idempotent: true },
    patience: PATIENCE,
    acquainted: () => true,
    silentMs: () => silence.ms,
    rediscover: () => undefined,
  });
}

/** Reports a failure and returns whether the call is tried again; the next attempt fails `laterMs` after this one. */
async function retries(outage: Outage, error: unknown, laterMs: number): Promise<boolean> {
  const failed = outage.failed(error).then(
    () => true,
    () => false,
  );
  vi.advanceTimersByTime(laterMs);
  return failed;
}

describe("an outage", () => {
  it("does not count a silence that has ended: resets after it get the full time", async () => {
    const silence = { ms: 20_000 };
    const outage = outageOf(silence);
    expect(await retries(outage, silent(WHERE, 20_000, "unknown"), 5_000)).toBe(true);
    silence.ms = 0;
    for (let i = 0; i < 4; i += 1) expect(await retries(outage, reset(), 5_000)).toBe(true);
  });

  it("ends after its time, counted from the first failure", async () => {
    const outage = outageOf({ ms: 0 });
    for (let i = 0; i < 3; i += 1) expect(await retries(outage, reset(), 10_000)).toBe(true);
    expect(await retries(outage, reset(), 10_000)).toBe(false);
  });

  it("ends at once when the server has been silent for the whole time", async () => {
    expect(await retries(outageOf({ ms: 0 }), silent(WHERE, 30_000, "unknown", 30_000), 0)).toBe(false);
  });
});
