import type { Numbers } from "@holdfast/contract";
import type { Lease } from "../ports/records.ts";

export type StopBackoff = Pick<Numbers, "stopBackoffMs" | "exhaustedRecheckMs">;

/**
 * Returns the lease after a failed stop attempt: the next attempt is due after the back-off for the number of attempts so
 * far. After the last back-off the attempts are exhausted, and the instance is only checked again at long intervals.
 */
export function afterFailure(
  lease: Extract<Lease, { state: "stopping" }>,
  error: string,
  now: number,
  { stopBackoffMs, exhaustedRecheckMs }: StopBackoff,
): Lease {
  const { reason, generation, attempts } = lease;
  const wait = stopBackoffMs[attempts - 1];
  const rest = { reason, generation, attempts, lastError: error };
  if (wait === undefined) return { state: "exhausted", ...rest, nextAttemptAt: now + exhaustedRecheckMs };
  return { state: "stop_needed", ...rest, nextAttemptAt: now + wait };
}

/**
 * Returns when the next stop attempt is due; null if none is needed. If the clock was set back since the last attempt,
 * the back-off is counted from now, so that the next attempt is delayed by at most one back-off.
 */
export function stopDueAt(
  lease: Lease,
  now: number,
  { stopBackoffMs, exhaustedRecheckMs }: StopBackoff,
): number | null {
  if (lease.state !== "stop_needed" && lease.state !== "exhausted") return null;
  const longest = lease.state === "exhausted" ? exhaustedRecheckMs : (stopBackoffMs[lease.attempts - 1] ?? 0);
  return Math.min(lease.nextAttemptAt, now + longest);
}
