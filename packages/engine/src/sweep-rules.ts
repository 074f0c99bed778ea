import type { SweepRule } from "@holdfast/contract";
import type { SandboxRecord } from "./records.ts";

/** How far a sweep may go. */
export interface Licence {
  /** Whether the host is short of something: then what was created `disposable` may go too. */
  short: boolean;
}

export interface Facts {
  record: SandboxRecord;
  execsUnderWay: number;
  now: number;
}

/**
 * Why a sandbox may be removed, or null. The only reasons there are: what its creator allowed when creating it, and the
 * end of what a failure keeps. Being idle, old, busy or silent is none; a sandbox with an exec under way goes only by its
 * own TTL.
 */
export function ruleFor({ record, execsUnderWay, now }: Facts, { short }: Licence): SweepRule | null {
  const { phase, lease, spec } = record;
  if (phase.name === "deleting" || phase.name === "gone") return null;
  if (phase.name === "failed")
    return phase.keptUntil <= now && lease.state === "none" ? "kept_long_enough" : null;
  if (lease.state === "quarantined") return null;
  const expiresAt = expiryOf(record);
  if (expiresAt !== null && expiresAt <= now) return "past_ttl";
  // What only waits in line holds nothing that would help.
  if (short && spec.lifecycle.disposable && execsUnderWay === 0 && phase.name === "running")
    return "disposable";
  return null;
}

export const expiryOf = ({ createdAt, spec }: SandboxRecord): number | null =>
  spec.lifecycle.ttlMs === undefined ? null : createdAt + spec.lifecycle.ttlMs;
