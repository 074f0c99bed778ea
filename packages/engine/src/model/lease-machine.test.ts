import { type AttemptId, NUMBERS } from "@holdfast/contract";
import fc from "fast-check";
import { describe, expect, it } from "vitest";
import type { Lease } from "../ports/records.ts";
import { type LeaseInput, nextLease } from "./lease-machine.ts";
import { stopDueAt } from "./stop-backoff.ts";

const attempt = (name: string) => name as AttemptId;
const step = (lease: Lease, input: LeaseInput, now = 0): Lease =>
  nextLease(lease, input, now, NUMBERS) ?? lease;

const held: Lease = { state: "held", generation: 1, startupDeadline: 60_000 };
const needed = step(held, { type: "need_stop", reason: "died", generation: 1 }, 100);
const stopping = step(needed, { type: "attempt", attemptId: attempt("a"), deadline: 1_000 });

const anyInput: fc.Arbitrary<LeaseInput> = fc.oneof(
  fc.constant<LeaseInput>({ type: "hold", generation: 2, startupDeadline: 1 }),
  fc
    .constantFrom("delete", "died", "launch_failed")
    .map<LeaseInput>((reason) => ({ type: "need_stop", reason, generation: 1 })),
  fc
    .constantFrom("a", "b")
    .map<LeaseInput>((id) => ({ type: "attempt", attemptId: attempt(id), deadline: 1 })),
  fc
    .constantFrom("a", "b")
    .map<LeaseInput>((id) => ({ type: "attempt_failed", attemptId: attempt(id), error: "no" })),
  fc.constantFrom("a", "b").map<LeaseInput>((id) => ({ type: "absence_observed", attemptId: attempt(id) })),
);

describe("the lease", () => {
  it("is not held again before the old instance was observed absent", () => {
    const hold: LeaseInput = { type: "hold", generation: 2, startupDeadline: 1 };
    for (const lease of [held, needed, stopping]) expect(nextLease(lease, hold, 0, NUMBERS)).toBeNull();
    expect(nextLease({ state: "none" }, hold, 0, NUMBERS)?.state).toBe("held");
  });

  it("ignores the result of an earlier attempt", () => {
    expect(nextLease(stopping, { type: "absence_observed", attemptId: attempt("b") }, 0, NUMBERS)).toBeNull();
    expect(
      nextLease(stopping, { type: "attempt_failed", attemptId: attempt("b"), error: "" }, 0, NUMBERS),
    ).toBeNull();
    expect(nextLease(stopping, { type: "absence_observed", attemptId: attempt("a") }, 0, NUMBERS)).toEqual({
      state: "none",
    });
  });

  it("backs off as in the table, and is exhausted but still retried after its last entry", () => {
    let lease = needed;
    const waits: number[] = [];
    for (let i = 0; i <= NUMBERS.stopBackoffMs.length; i += 1) {
      lease = step(lease, { type: "attempt", attemptId: attempt(`${i}`), deadline: 0 });
      lease = step(lease, { type: "attempt_failed", attemptId: attempt(`${i}`), error: "no" }, 1_000);
      waits.push((stopDueAt(lease, 1_000, NUMBERS) ?? Number.NaN) - 1_000);
    }
    expect(waits).toEqual([...NUMBERS.stopBackoffMs, NUMBERS.exhaustedRecheckMs]);
    expect(lease.state).toBe("exhausted");
    expect(step(lease, { type: "attempt", attemptId: attempt("z"), deadline: 0 }).state).toBe("stopping");
  });

  it("is due at most one back-off from now, even if the clock was set back", () => {
    const earlier = 1_000 - 600_000;
    expect(stopDueAt(needed, earlier, NUMBERS)).toBeLessThanOrEqual(earlier);
    const tried = step(needed, { type: "attempt", attemptId: attempt("a"), deadline: 0 });
    const failed = step(tried, { type: "attempt_failed", attemptId: attempt("a"), error: "no" }, 1_000);
    expect(stopDueAt(failed, earlier, NUMBERS)).toBe(earlier + (NUMBERS.stopBackoffMs[0] ?? 0));
  });

  it("lets a delete take over at once, and keeps its back-off if the delete is repeated", () => {
    const deleted = step(stopping, { type: "need_stop", reason: "delete", generation: 1 }, 500);
    expect(deleted).toMatchObject({
      state: "stop_needed",
      reason: "delete",
      nextAttemptAt: 500,
      attempts: 0,
    });
    let failed = step(deleted, { type: "attempt", attemptId: attempt("c"), deadline: 0 });
    failed = step(failed, { type: "attempt_failed", attemptId: attempt("c"), error: "no" }, 1_000);
    expect(
      nextLease(failed, { type: "need_stop", reason: "delete", generation: 1 }, 2_000, NUMBERS),
    ).toBeNull();
  });

  it("is released only after an observed absence, for any sequence of inputs", () => {
    fc.assert(
      fc.property(fc.array(anyInput, { maxLength: 40 }), (inputs) => {
        let lease: Lease = held;
        for (const input of inputs) {
          const next = nextLease(lease, input, 0, NUMBERS);
          if (next === null) continue;
          if (next.state === "none") {
            expect(lease.state).toBe("stopping");
            expect(input.type).toBe("absence_observed");
          }
          lease = next;
        }
      }),
    );
  });
});
