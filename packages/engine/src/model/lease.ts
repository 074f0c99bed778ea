import {
  type AttemptId,
  type LeaseView,
  type Numbers,
  type StopReason,
  unreachable,
} from "@holdfast/contract";
import type { Lease } from "./records.ts";

export type LeaseInput =
  | { type: "hold"; generation: number; startupDeadline: number }
  | { type: "need_stop"; reason: StopReason; generation: number }
  | { type: "attempt"; attemptId: AttemptId; deadline: number }
  | { type: "attempt_failed"; attemptId: AttemptId; error: string }
  | { type: "absence_observed"; attemptId: AttemptId };

type BackOff = Pick<Numbers, "stopBackoffMs" | "exhaustedRecheckMs">;

/**
 * The next lease, or null where the input is stale or does not apply: an answer of an earlier attempt, a hold while the
 * old instance has not been seen to be absent. The caller stores the result before it does what the result allows.
 */
export function nextLease(lease: Lease, input: LeaseInput, now: number, backOff: BackOff): Lease | null {
  switch (input.type) {
    case "hold":
      if (lease.state !== "none") return null;
      return {
        state: "held",
        generation: input.generation,
        startupDeadline: input.startupDeadline,
        hostBootId: null,
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
      return afterFailure(lease, input.error, now, backOff);
    case "absence_observed":
      if (lease.state !== "stopping" || lease.attemptId !== input.attemptId) return null;
      return { state: "none" };
    default:
      return unreachable(input);
  }
}

/**
 * A delete outranks every other reason and takes over at once, fencing the attempt under way. The same duty named
 * twice changes nothing, so that repeated deletes never shorten a back-off.
 */
function needStop(lease: Lease, reason: StopReason, generation: number, now: number): Lease | null {
  const owed = "reason" in lease ? lease.reason : null;
  if (owed !== null && (owed === reason || reason !== "delete")) return null;
  return { state: "stop_needed", reason, generation, attempts: 0, nextAttemptAt: now, lastError: null };
}

function afterFailure(
  lease: Extract<Lease, { state: "stopping" }>,
  error: string,
  now: number,
  { stopBackoffMs, exhaustedRecheckMs }: BackOff,
): Lease {
  const { reason, generation, attempts } = lease;
  const wait = stopBackoffMs[attempts - 1];
  const rest = { reason, generation, attempts, lastError: error };
  if (wait === undefined) return { state: "exhausted", ...rest, nextAttemptAt: now + exhaustedRecheckMs };
  return { state: "stop_needed", ...rest, nextAttemptAt: now + wait };
}

/**
 * When the duty to stop is due, or null where there is none. What was stored before the clock was set back is due no later
 * than if it had been stored now.
 */
export function stopDueAt(
  lease: Lease,
  now: number,
  { stopBackoffMs, exhaustedRecheckMs }: BackOff,
): number | null {
  if (lease.state !== "stop_needed" && lease.state !== "exhausted") return null;
  const longest = lease.state === "exhausted" ? exhaustedRecheckMs : (stopBackoffMs[lease.attempts - 1] ?? 0);
  return Math.min(lease.nextAttemptAt, now + longest);
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
        nextAttemptAt: new Date(lease.nextAttemptAt).toISOString(),
        ...(lease.lastError === null ? {} : { lastError: lease.lastError }),
      };
    default:
      return unreachable(lease);
  }
}
