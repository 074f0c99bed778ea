import type { AttemptId, Cause } from "@holdfast/contract";
import type { SandboxRecord } from "../ports/records.ts";
import { nextLease } from "./lease-machine.ts";
import { EXPIRED } from "./removal-cause.ts";
import { isExpired } from "./sandbox-facts.ts";
import { type Decision, enter, outcome, type SandboxInput, type Settings } from "./transition.ts";

/**
 * This file contains the transitions of a delete, and of the stop attempts until the instance was observed to be
 * absent.
 */

export function linger(record: SandboxRecord, now: number, settings: Settings): Decision | null {
  const { phase, generation } = record;
  if ((phase.name !== "failed" && phase.name !== "standby") || record.lease.state !== "none") return null;
  const reason = phase.name === "failed" ? "died" : "standby";
  const lease = nextLease(record.lease, { type: "need_stop", reason, generation }, now, settings);
  if (lease === null) return null;
  return outcome({ ...record, lease }, now, [
    ["lease.stop_needed", "Processes were found of a sandbox that should have none."],
  ]);
}

export function remove(
  record: SandboxRecord,
  cause: Cause | null,
  now: number,
  settings: Settings,
): Decision | null {
  if (record.phase.name === "gone") return null;
  // A repeated delete applies only if the lease is unreadable. The delete then replaces the lease.
  if (record.phase.name === "deleting" && record.lease.state !== "quarantined") return null;
  const order = { type: "need_stop", reason: "delete", generation: record.generation } as const;
  const lease = nextLease(record.lease, order, now, settings);
  // A sandbox whose TTL has passed is deleted because of its TTL, even if a client requests the delete first.
  const why = isExpired(record, now) ? EXPIRED : cause;
  const earlier = record.phase.name === "failed" || record.phase.name === "deleting" ? record.phase : null;
  // A sandbox whose TTL has passed releases its name at once, even before all of it is removed.
  const nameHeld = record.nameHeld && !isExpired(record, now);
  const deleting = enter(record, { name: "deleting", cause: earlier ? earlier.cause : why }, now);
  const next = { ...deleting, nameHeld, lease: lease ?? record.lease };
  const message = why?.message ?? "The delete was accepted.";
  const data = { ...(why === null ? {} : { cause: why }), ...quarantined(record) };
  return outcome(next, now, [["sandbox.deleting", message, data]]);
}

/**
 * Returns the data of the event that reports a delete: the raw text of an unreadable lease, because the delete replaces
 * that lease; nothing if the lease is readable.
 */
const quarantined = (record: SandboxRecord): Record<string, unknown> =>
  record.lease.state === "quarantined" ? { quarantinedLease: record.lease.raw } : {};

export function stopStep(
  record: SandboxRecord,
  input: Extract<SandboxInput, { attemptId: AttemptId }>,
  now: number,
  settings: Settings,
): Decision | null {
  const type = STOP_STEPS[input.type];
  const lease = nextLease(record.lease, { ...input, type } as Parameters<typeof nextLease>[1], now, settings);
  if (lease === null) return null;
  const next = { ...record, lease };
  switch (lease.state) {
    case "stopping":
      return outcome(next, now, [
        ["lease.stopping", `Stop attempt ${lease.attempts}.`, { reason: lease.reason }],
      ]);
    case "stop_needed":
      return outcome(next, now, [
        ["lease.stop_failed", lease.lastError ?? "", { nextAttemptAt: lease.nextAttemptAt }],
      ]);
    case "exhausted":
      return outcome(next, now, [["lease.exhausted", lease.lastError ?? "", { attempts: lease.attempts }]]);
    default:
      return released({ ...next, instance: null }, now);
  }
}

const STOP_STEPS = {
  stop_attempt: "attempt",
  stop_failed: "attempt_failed",
  absence_observed: "absence_observed",
} as const;

function released(record: SandboxRecord, now: number): Decision {
  if (record.phase.name !== "deleting") {
    return outcome(record, now, [["lease.released", "The instance was observed absent."]]);
  }
  const gone = {
    ...enter(record, { name: "gone", cause: record.phase.cause }, now),
    nameHeld: false,
    endedAt: now,
  };
  const decision = outcome(gone, now, [["sandbox.terminated", "Nothing of the sandbox is left."]]);
  return { ...decision, counters: { terminated: 1 } };
}
