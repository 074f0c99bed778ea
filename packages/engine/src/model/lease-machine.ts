import { type AttemptId, type LeaseView, type StopReason, unreachable } from "@holdfast/contract";
import { iso } from "../lib/format.ts";
import type { Lease } from "../ports/records.ts";
import { afterFailure, type StopBackoff } from "./stop-backoff.ts";

export type LeaseInput =
  | { type: "hold"; generation: number; startupDeadline: number }
  | { type: "need_stop"; reason: StopReason; generation: number }
  | { type: "attempt"; attemptId: AttemptId; deadline: number }
  | { type: "attempt_failed"; attemptId: AttemptId; error: string }
  | { type: "absence_observed"; attemptId: AttemptId };

/**
 * Returns the next lease, or null if the input does not apply. An input does not apply, for example, if it answers an
 * earlier stop attempt, or requests a hold before the old instance was observed to be absent. The caller stores the
 * result before acting on it.
 */
export function nextLease(lease: Lease, input: LeaseInput, now: number, backoff: StopBackoff): Lease | null {
  switch (input.type) {
    case "hold":
      if (lease.state !== "none") return null;
      return {
        state: "held",
        generation: input.generation,
        startupDeadline: input.startupDeadline,
      };
    case "need_stop":
      return needStop(lease, input.reason, input.generation, now);
    case "attempt":
      if (lease.state !== "stop_needed" && lease.state !== "exhausted") return null;
      return {
        state: "stopping",
        reason: lease.reason,
        generation: lease.generation,
        attempts: lease.attempts + 1,
        attemptId: input.attemptId,
        deadline: input.deadline,
      };
    case "attempt_failed":
      if (lease.state !== "stopping" || lease.attemptId !== input.attemptId) return null;
      return afterFailure(lease, input.error, now, backoff);
    case "absence_observed":
      if (lease.state !== "stopping" || lease.attemptId !== input.attemptId) return null;
      return { state: "none" };
    default:
      return unreachable(input);
  }
}

/**
 * Returns a lease that requires a stop; null if the lease already requires one. Only a delete replaces an earlier
 * reason: the new stop is due at once, and the result of the attempt in progress becomes stale. A repeated delete
 * changes nothing, so it can't shorten a back-off.
 */
function needStop(lease: Lease, reason: StopReason, generation: number, now: number): Lease | null {
  const owed = "reason" in lease ? lease.reason : null;
  if (owed !== null && (owed === reason || reason !== "delete")) return null;
  return { state: "stop_needed", reason, generation, attempts: 0, nextAttemptAt: now, lastError: null };
}

export function viewLease(lease: Lease): LeaseView {
  switch (lease.state) {
    case "none":
    case "held":
    case "quarantined":
      return { state: lease.state };
    case "stopping":
      return { state: lease.state, reason: lease.reason, attempts: lease.attempts };
    case "stop_needed":
    case "exhausted":
      return {
        state: lease.state,
        reason: lease.reason,
        attempts: lease.attempts,
        nextAttemptAt: iso(lease.nextAttemptAt),
        ...(lease.lastError === null ? {} : { lastError: lease.lastError }),
      };
    default:
      return unreachable(lease);
  }
}
