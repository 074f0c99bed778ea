import type { Cause, StopReason } from "@holdfast/contract";
import type { PhaseState, SandboxRecord } from "../ports/records.ts";
import { nextLease } from "./lease-machine.ts";
import { isExpired } from "./sandbox-facts.ts";
import { type Decision, enter, outcome, type Settings } from "./transition.ts";
import { remove } from "./transitions-stop.ts";

/**
 * This file contains the transitions of a sandbox that lost its processes: it is started again with its files, or it
 * fails.
 */

/**
 * Decides what follows when the processes are gone for good: a restart or a failure, as the sandbox's policy says. A
 * sandbox whose TTL has passed is deleted instead, because its keeper may have ended it at the end of the TTL while no
 * server was running.
 */
export function loseMemory(record: SandboxRecord, cause: Cause, now: number, settings: Settings): Decision {
  const removal = isExpired(record, now) ? remove(record, EXPIRED, now, settings) : null;
  if (removal !== null) return removal;
  return mayRestart(record, now, settings)
    ? restart(record, cause, now, settings)
    : fail(record, "died", usedUp(record, cause, settings), now, settings);
}

const EXPIRED: Cause = { code: "expired", message: "The sandbox reached the end of its TTL." };

/**
 * The end of the retention of a failed sandbox that came from a backup, or whose files a person copied into place. The
 * time is so far ahead that only a request removes the sandbox.
 */
export const KEPT_FOR_GOOD = Date.UTC(9999, 0, 1);

/**
 * Causes that suggest that a person copied the files of the sandbox or of a drive into place: the kernel does not mount
 * the files, or the driver does not recognise the drive's directory. The copied files may be the only ones, so they are
 * not removed.
 */
const COPIED_FILES: ReadonlySet<string> = new Set(["restore_root", "launch_root", "drive_replaced"]);

const mayBeCopied = (cause: Cause): boolean =>
  COPIED_FILES.has(cause.code) || (cause.cause !== undefined && mayBeCopied(cause.cause));

/** Adds to the cause that the restart limit prevented a cold start. */
function usedUp({ spec, restarts }: SandboxRecord, cause: Cause, { restartWindowMs }: Settings): Cause {
  if (spec.lifecycle.onMemoryLoss !== "cold-start" || restarts === null) return cause;
  const within = `${Math.round(restartWindowMs / 60_000)} min`;
  const message = `${cause.message} The sandbox was started again ${restarts.count} times within ${within}, which is the limit.`;
  return { code: "keeps_breaking", message, cause };
}

export function mayRestart({ spec, restarts }: SandboxRecord, now: number, settings: Settings): boolean {
  if (spec.lifecycle.onMemoryLoss !== "cold-start") return false;
  return restarts === null || !isRecent(restarts, now, settings) || restarts.count < settings.restartsMax;
}

const isRecent = ({ since }: { since: number }, now: number, { restartWindowMs }: Settings): boolean =>
  now - since < restartWindowMs;

/**
 * Restarts on request, and resets the count of restarts, because a requested restart is no sign of a broken sandbox.
 * Applies to a running sandbox and to a failed one that kept its files; returns null for all others. A failed first
 * launch keeps no files.
 */
export function requestedRestart(
  record: SandboxRecord,
  cause: Cause,
  now: number,
  settings: Settings,
): Decision | null {
  const { phase, lease, nameHeld } = record;
  const restarts = { since: now, count: 0 };
  const isRevived = phase.name === "failed" && nameHeld && lease.state === "none";
  if (!isRevived && phase.name !== "running") return null;
  const decision = restart({ ...record, endedAt: null }, cause, now, settings);
  // A failed sandbox has nothing left to stop, so its lease stays as it is.
  const next = isRevived ? { ...decision.record, lease } : decision.record;
  return { ...decision, record: { ...next, restarts } };
}

/**
 * Restarts a sandbox that has lost its memory but not its files: the rest of the instance is stopped, and then the
 * sandbox is launched again on the same files.
 */
export function restart(record: SandboxRecord, cause: Cause, now: number, settings: Settings): Decision {
  const { generation, restarts } = record;
  const lease = nextLease(record.lease, { type: "need_stop", reason: "replace", generation }, now, settings);
  const next = {
    ...enter(record, { name: "queued", restart: cause }, now),
    lease: lease ?? record.lease,
    restarts:
      restarts !== null && isRecent(restarts, now, settings)
        ? { ...restarts, count: restarts.count + 1 }
        : { since: now, count: 1, ...(restarts?.restoredAt && { restoredAt: restarts.restoredAt }) },
  };
  const message = `${cause.message} Its memory is lost; it is started again on the same files.`;
  return outcome(next, now, [["sandbox.restarting", message, { cause, memoryLost: true }]]);
}

export function fail(
  record: SandboxRecord,
  reason: StopReason,
  cause: Cause,
  now: number,
  settings: Settings,
): Decision {
  const lease = nextLease(
    record.lease,
    { type: "need_stop", reason, generation: record.generation },
    now,
    settings,
  );
  const isKept = record.restarts?.restoredAt !== undefined || (record.nameHeld && mayBeCopied(cause));
  const phase: PhaseState = {
    name: "failed",
    cause,
    keptUntil: isKept ? KEPT_FOR_GOOD : now + settings.failedKeptMs,
  };
  const next = { ...enter(record, phase, now), lease: lease ?? record.lease, endedAt: now };
  return { ...outcome(next, now, [["sandbox.failed", cause.message, { cause }]]), counters: { failed: 1 } };
}
