import type { StandbyKind, SweepRule } from "@holdfast/contract";
import type { Cell } from "./cell.ts";
import type { Capacity } from "./ports.ts";
import type { SandboxRecord } from "./records.ts";

/** How far a sweep may go. */
export interface Licence {
  /** Whether the host is short of something: then what was created `disposable` may go too. */
  short: boolean;
}

export interface Facts {
  record: SandboxRecord;
  execsUnderWay: number;
  callsUnderWay: number;
  /** Since when this server has it: before that nobody could have used it, however much they wanted to. */
  reachableSince: number;
  now: number;
}

/**
 * Why a sandbox may be removed, or null. The only reasons there are: what its creator allowed when creating it, and the
 * end of what a failure keeps. Being idle, old, busy or silent is none by itself; a sandbox with an exec under way goes
 * only by its own TTL.
 */
export function ruleFor(facts: Facts, { short }: Licence): SweepRule | null {
  const { record, execsUnderWay, now } = facts;
  const { phase, lease, spec } = record;
  if (phase.name === "deleting" || phase.name === "gone") return null;
  if (phase.name === "failed")
    return phase.keptUntil <= now && lease.state === "none" ? "kept_long_enough" : null;
  if (lease.state === "quarantined") return null;
  const expiresAt = expiryOf(record);
  if (expiresAt !== null && expiresAt <= now) return "past_ttl";
  if (isPastIdleTtl(facts)) return "past_idle_ttl";
  // What only waits in line holds nothing that would help; what sleeps holds disk.
  const holdsSomething = phase.name === "running" || phase.name === "standby";
  if (short && spec.lifecycle.disposable && execsUnderWay === 0 && holdsSomething) return "disposable";
  return null;
}

/** What is on its way to sleep, or from there, is left alone until it is there. */
const MAY_BE_IDLE: readonly SandboxRecord["phase"]["name"][] = ["running", "paused", "standby"];

function isPastIdleTtl({ record, execsUnderWay, callsUnderWay, reachableSince, now }: Facts): boolean {
  const { phase, spec, lastActivityAt } = record;
  const { idleTtlMs } = spec.lifecycle;
  if (idleTtlMs === undefined || execsUnderWay > 0 || callsUnderWay > 0) return false;
  return MAY_BE_IDLE.includes(phase.name) && now - Math.max(lastActivityAt, reachableSince) >= idleTtlMs;
}

/** What standby keeps on this host, and for how long nobody may have used a sandbox that is put to it. */
export interface RestLicence {
  kind: StandbyKind;
  idleMs: number;
}

/**
 * Whether a sandbox may be put to standby for the host's sake. It costs its user the moment of a wake, and memory only
 * where standby keeps none: then its creator must have agreed, by asking for standby or for a cold start after a loss.
 */
export function mayRest(facts: Facts, { kind, idleMs }: RestLicence): boolean {
  const { record, execsUnderWay, callsUnderWay, now } = facts;
  if (execsUnderWay > 0 || callsUnderWay > 0) return false;
  if (now - record.lastActivityAt < idleMs) return false;
  const { idleStandbyMs, onMemoryLoss } = record.spec.lifecycle;
  return kind === "memory" || idleStandbyMs !== undefined || onMemoryLoss === "cold-start";
}

/** Whether standby relieves what the host is short of: it frees memory, and takes disk for it. */
export const isMemoryAbove = (
  { memoryFreeBytes, memoryTotalBytes }: Pick<Capacity, "memoryFreeBytes" | "memoryTotalBytes">,
  share: number,
): boolean => memoryFreeBytes < memoryTotalBytes * (1 - share);

export const expiryOf = ({ createdAt, spec }: SandboxRecord): number | null =>
  spec.lifecycle.ttlMs === undefined ? null : createdAt + spec.lifecycle.ttlMs;

export const leastRecentlyUsed = (cells: Iterable<Cell>): Cell[] =>
  [...cells].sort((a, b) => a.record.lastActivityAt - b.record.lastActivityAt);

/** The reason as it is now; it may be gone by the time that the turn of the sandbox comes. */
export const ruleNow = (cell: Cell, licence: Licence, now: number): SweepRule | null =>
  ruleFor({ ...factsOf(cell), now }, licence);

export const factsOf = (cell: Cell): Omit<Facts, "now"> => ({
  record: cell.record,
  // Also between two runs of what is started again.
  execsUnderWay: Math.max(cell.openExecs.size, cell.hasLiveProcess ? 1 : 0),
  callsUnderWay: cell.calls,
  reachableSince: cell.reachableSince,
});
