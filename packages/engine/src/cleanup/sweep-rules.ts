import type { StandbyKind, SweepRule } from "@holdfast/contract";
import type { LiveSandbox } from "../live/live-sandbox.ts";
import { isUnusedFor } from "../model/idle.ts";
import { expiryOf, isExpired } from "../model/sandbox-facts.ts";
import type { Capacity } from "../ports/index.ts";
import type { SandboxRecord } from "../ports/records.ts";

/** The extent of a sweep. */
export interface SweepScope {
  /** Whether the host is short of resources. If so, `disposable` sandboxes may be removed too. */
  short: boolean;
}

interface Facts {
  record: SandboxRecord;
  execsUnderWay: number;
  callsUnderWay: number;
  /**
   * When this server began to serve the sandbox. Idle time is counted from then at the earliest, because no client
   * could use the sandbox before.
   */
  reachableSince: number;
  now: number;
}

/**
 * Returns the rule by which a sandbox may be removed, or null. A sandbox may be removed only for a reason that its
 * creator allowed in the spec, or because it failed and its retention has ended. A sandbox that is idle, old, busy or
 * silent is not removed for that alone, and a sandbox with an open exec is removed only by its own TTL.
 */
export function ruleFor(facts: Facts, { short }: SweepScope): SweepRule | null {
  const { record, execsUnderWay, now } = facts;
  const { phase, lease, spec } = record;
  if (phase.name === "deleting" || phase.name === "gone") return null;
  if (phase.name === "failed")
    return phase.keptUntil <= now && lease.state === "none" ? "kept_long_enough" : null;
  if (lease.state === "quarantined") return null;
  if (isExpired(record, now)) return "past_ttl";
  if (isPastIdleTtl(facts)) return "past_idle_ttl";
  // Whether a removal would free resources: a queued sandbox uses none, but a sandbox in standby uses disk.
  const holdsSomething = phase.name === "running" || phase.name === "standby";
  if (short && spec.lifecycle.disposable && execsUnderWay === 0 && holdsSomething) return "disposable";
  return null;
}

/**
 * Phases in which a sandbox may be removed for being idle. While it is being suspended or woken, it is not removed.
 */
const MAY_BE_IDLE: readonly SandboxRecord["phase"]["name"][] = ["running", "paused", "standby"];

function isPastIdleTtl({ record, execsUnderWay, callsUnderWay, reachableSince, now }: Facts): boolean {
  const { phase, spec, lastActivityAt } = record;
  const { idleTtlMs } = spec.lifecycle;
  if (idleTtlMs === undefined || execsUnderWay > 0 || callsUnderWay > 0) return false;
  return MAY_BE_IDLE.includes(phase.name) && now - Math.max(lastActivityAt, reachableSince) >= idleTtlMs;
}

/**
 * Limits on pressure standby: what standby preserves on this host, and how long a sandbox must have been idle to be
 * suspended.
 */
interface PressureStandbyLimits {
  kind: StandbyKind;
  idleMs: number;
}

/**
 * Whether a sandbox may be suspended to relieve the host. The next call to the sandbox then waits for its wake. If
 * standby does not preserve memory on this host, the creator must have agreed to lose the memory, by `idleStandbyMs` or
 * by a cold start after memory loss.
 */
export function maySuspend(facts: Facts, { kind, idleMs }: PressureStandbyLimits): boolean {
  const { record, execsUnderWay, callsUnderWay, now } = facts;
  if (execsUnderWay > 0 || !isUnusedFor({ record, callsInProgress: callsUnderWay, now }, idleMs))
    return false;
  const { idleStandbyMs, onMemoryLoss } = record.spec.lifecycle;
  return kind === "memory" || idleStandbyMs !== undefined || onMemoryLoss === "cold-start";
}

/**
 * Whether memory usage is above the given share. Standby helps the host only in this case, because it frees memory and
 * uses disk.
 */
export const isMemoryAbove = (
  { memoryFreeBytes, memoryTotalBytes }: Pick<Capacity, "memoryFreeBytes" | "memoryTotalBytes">,
  share: number,
): boolean => memoryFreeBytes < memoryTotalBytes * (1 - share);

/**
 * Returns the time at which the sandbox may become removable by its age, or null if that can't happen. Use of the
 * sandbox defers this time.
 */
export function removalDueAt({ record, reachableSince }: Omit<Facts, "now">): number | null {
  const { idleTtlMs } = record.spec.lifecycle;
  const idleAt = idleTtlMs === undefined ? null : Math.max(record.lastActivityAt, reachableSince) + idleTtlMs;
  const due = [expiryOf(record), idleAt].filter((at) => at !== null);
  return due.length === 0 ? null : Math.min(...due);
}

export const leastRecentlyUsed = (allLive: Iterable<LiveSandbox>): LiveSandbox[] =>
  [...allLive].sort((a, b) => a.record.lastActivityAt - b.record.lastActivityAt);

/**
 * Returns the rule that applies now. The rule is checked again when the sandbox is about to be removed, because it may
 * no longer apply.
 */
export const ruleNow = (live: LiveSandbox, scope: SweepScope, now: number): SweepRule | null =>
  ruleFor({ ...factsOf(live), now }, scope);

export const factsOf = (live: LiveSandbox): Omit<Facts, "now"> => ({
  record: live.record,
  // A supervised process is counted as an open exec, even between two of its runs.
  execsUnderWay: Math.max(live.openExecs.size, live.hasLiveProcess ? 1 : 0),
  callsUnderWay: live.calls,
  reachableSince: live.reachableSince,
});
