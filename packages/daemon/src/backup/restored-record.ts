import type { Cause } from "@holdfast/contract";
import { KEPT_FOR_GOOD, type NewEvent, type PhaseState, type SandboxRecord } from "@holdfast/engine";

interface RestoredFacts {
  now: number;
  /** Time of the backup. */
  takenAt: number;
  /** Whether the files of the sandbox were restored. */
  hasFiles: boolean;
  /** Whether the memory of the standby checkpoint in the record was restored. */
  hasMemory: boolean;
}

const NOT_IN_BACKUP: Cause = {
  code: "not_in_backup",
  message: "The files of the sandbox are not in the backup that this installation was restored from.",
};

const WITHOUT_MEMORY: Cause = {
  code: "restored_without_memory",
  message:
    "The sandbox was restored from a copy of its files, without its memory; the next call starts it again.",
};

/** Phases in which a sandbox has processes in memory. A copy of the sandbox's files does not contain that memory. */
const WITH_MEMORY: readonly PhaseState["name"][] = ["launching", "running", "paused", "suspending", "waking"];

/**
 * Returns the record of a sandbox in the restored installation. A sandbox with restored files is in standby, unless it
 * had failed or was being deleted. Its standby has memory only if the memory was restored too. The record refers to no
 * processes, because the processes of the original may still run. The time between the backup and the restore does not
 * count against the sandbox's TTL.
 */
export function restoredRecord(
  record: SandboxRecord,
  facts: RestoredFacts,
): { record: SandboxRecord; events: NewEvent[] } {
  const { now, takenAt, hasFiles } = facts;
  const { phase, spec } = record;
  const { ttlMs } = spec.lifecycle;
  const lifecycle =
    ttlMs === undefined ? spec.lifecycle : { ...spec.lifecycle, ttlMs: ttlMs + Math.max(0, now - takenAt) };
  const next: SandboxRecord = {
    ...record,
    spec: { ...spec, lifecycle },
    instance: null,
    lease: { state: "none" },
    transitionedAt: now,
    restarts: { since: now, count: 0, restoredAt: now },
    revision: record.revision + 1,
  };
  const isUnlaunched = phase.name === "queued" || phase.name === "launching";
  if (phase.name === "deleting" || (!hasFiles && !isUnlaunched)) return gone(next, record, now);
  if (!hasFiles)
    return { record: { ...next, phase: { name: "queued" }, restarts: record.restarts }, events: [] };
  if (phase.name === "failed")
    return { record: { ...next, phase: { ...phase, keptUntil: KEPT_FOR_GOOD } }, events: [] };
  return asleep(next, record, facts);
}

function gone(next: SandboxRecord, { phase }: SandboxRecord, now: number) {
  const cause = phase.name === "deleting" ? phase.cause : NOT_IN_BACKUP;
  const record: SandboxRecord = { ...next, phase: { name: "gone", cause }, nameHeld: false, endedAt: now };
  const message = cause?.message ?? "The sandbox was being deleted when the backup was taken.";
  const { id: sandboxId, generation } = record;
  return {
    record,
    events: [{ at: now, type: "sandbox.terminated", sandboxId, generation, message } as const],
  };
}

function asleep(next: SandboxRecord, record: SandboxRecord, { now, hasMemory }: RestoredFacts) {
  const { phase, id: sandboxId, generation } = record;
  const kept = phase.name === "standby" && hasMemory ? phase.checkpoint : null;
  if (kept !== null) {
    const checkpoint = { ...kept, restored: true } as const;
    return {
      record: { ...next, phase: { name: "standby", checkpoint, failedWakes: 0 } as const },
      events: [],
    };
  }
  // With this lease, the engine looks for processes of the sandbox, ends them, and ends the sandbox's open execs with
  // the outcomes in their journals.
  const lease = {
    ...({ state: "stop_needed", reason: "standby", generation, attempts: 0 } as const),
    ...{ nextAttemptAt: now, lastError: null },
  };
  const asleepNow = { ...next, lease, phase: { name: "standby", checkpoint: null, failedWakes: 0 } as const };
  const hadMemory =
    WITH_MEMORY.includes(phase.name) || (phase.name === "standby" && phase.checkpoint !== null);
  if (!hadMemory) return { record: asleepNow, events: [] };
  const { message } = WITHOUT_MEMORY;
  const data = { cause: WITHOUT_MEMORY };
  const lost = { at: now, type: "sandbox.memory_lost", sandboxId, generation, message, data } as const;
  return { record: asleepNow, events: [lost] };
}
