import type { Origin, SandboxRecord } from "../ports/records.ts";

/** Whether the sandbox has an instance with processes, according to its record. */
export const hasInstance = ({ phase }: SandboxRecord): boolean =>
  phase.name === "running" || phase.name === "paused" || phase.name === "suspending";

/** Whether the sandbox has ended, so that its current memory is never used again. A paused sandbox has not ended. */
export const hasEnded = ({ phase }: SandboxRecord): boolean =>
  phase.name === "deleting" || phase.name === "gone" || phase.name === "failed";

/** Whether an earlier instance of the sandbox has served. If so, the sandbox is launched on its existing files. */
export const hasServed = ({ restarts }: SandboxRecord): boolean => restarts !== null;

/**
 * Returns the checkpoint that a fork's launch copies. Null if the sandbox is not a fork, or if an earlier instance has
 * served: the launch then uses the sandbox's own files.
 */
export const forkSource = (record: SandboxRecord): Origin | null =>
  hasServed(record) ? null : record.forkedFrom;

/**
 * Whether the sandbox is launched from a checkpoint with memory. If so, the instance starts with the keeper and the
 * execs that were in that memory.
 */
export const beginsWithMemory = (record: SandboxRecord): boolean => forkSource(record)?.kind === "memory";

/**
 * Whether the files are deleted when this instance ends: after a delete, and after a failed first launch, which leaves
 * nothing worth keeping.
 */
export function destroysFiles(record: SandboxRecord): boolean {
  if (record.phase.name === "deleting") return true;
  return "reason" in record.lease && record.lease.reason === "launch_failed";
}

/**
 * Whether the sandbox failed after it had been ready, and the cleanup of its last instance is complete. The files of
 * such a sandbox stay on disk.
 */
export const isKeptFailed = ({ phase, nameHeld, lease }: SandboxRecord): boolean =>
  phase.name === "failed" && nameHeld && lease.state === "none";

/** Returns the time at which the sandbox's TTL ends; null without a TTL. */
export const expiryOf = ({ createdAt, spec }: SandboxRecord): number | null =>
  spec.lifecycle.ttlMs === undefined ? null : createdAt + spec.lifecycle.ttlMs;

/**
 * Whether the sandbox's TTL has passed but the sandbox is not deleted yet. An expired sandbox serves nothing and does
 * not hold its name. A failed sandbox never expires, because it has its own retention. A sandbox with an unreadable
 * lease does not expire either: it is left alone.
 */
export function isExpired(record: SandboxRecord, now: number): boolean {
  const expiresAt = expiryOf(record);
  if (expiresAt === null || expiresAt > now || record.lease.state === "quarantined") return false;
  const { name } = record.phase;
  return name !== "failed" && name !== "deleting" && name !== "gone";
}
