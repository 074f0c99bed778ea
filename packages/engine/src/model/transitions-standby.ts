import { type Cause, unreachable } from "@holdfast/contract";
import type { SandboxRecord } from "../ports/records.ts";
import { nextLease } from "./lease-machine.ts";
import { type Decision, enter, eventOf, outcome, type SandboxInput, type Settings } from "./transition.ts";
import { loseMemory, restart } from "./transitions-failure.ts";

/**
 * This file contains the transitions into standby and out of it, and those of checkpoints that a running sandbox saves.
 */

type SleepInput = Extract<
  SandboxInput,
  {
    type:
      | "suspend"
      | "suspend_failed"
      | "suspended"
      | "saved"
      | "copied"
      | "wake"
      | "restored"
      | "wake_failed";
  }
>;

export function standbyStep(
  record: SandboxRecord,
  input: SleepInput,
  now: number,
  settings: Settings,
): Decision | null {
  const { phase } = record;
  switch (input.type) {
    case "suspend": {
      if (phase.name !== "running") return null;
      const { checkpointId, kind, deadline, why, saving } = input;
      const asked = { name: "suspending", checkpointId, kind, deadline, ...(saving && { saving }) } as const;
      const type = saving ? "sandbox.saving" : "sandbox.suspending";
      return outcome(enter(record, asked, now), now, [[type, why, { kind }]]);
    }
    case "suspend_failed": {
      if (phase.name !== "suspending" || phase.checkpointId !== input.checkpointId) return null;
      const { cause } = input;
      const [type, left] = phase.saving
        ? (["sandbox.checkpoint_failed", "The sandbox keeps running, and no checkpoint was saved"] as const)
        : (["sandbox.standby_failed", "The sandbox stays awake"] as const);
      return outcome(enter(record, { name: "running" }, now), now, [
        [type, `${left}: ${cause.message}`, { cause }],
      ]);
    }
    case "saved": {
      const { checkpointId, name, sizeBytes } = input;
      if (phase.name !== "suspending" || !phase.saving || phase.checkpointId !== checkpointId) return null;
      return outcome(enter(record, { name: "running" }, now), now, [
        ["sandbox.checkpointed", `Checkpoint ${name} is kept.`, { checkpointId, name, sizeBytes }],
      ]);
    }
    case "copied": {
      if (phase.name !== "suspending" || !phase.saving || phase.checkpointId !== input.checkpointId)
        return null;
      return outcome(enter(record, { name: "running" }, now), now, []);
    }
    case "suspended":
      return suspended(record, input, now, settings);
    case "wake":
      return wake(record, input, now, settings);
    case "restored": {
      if (phase.name !== "waking" || phase.consumed || record.generation !== input.generation) return null;
      const { keeperBootId } = phase.checkpoint;
      const instance = { ...input.instance, ...(keeperBootId === null ? {} : { keeperBootId }) };
      return outcome({ ...record, instance, phase: { ...phase, consumed: true } }, now, []);
    }
    case "wake_failed":
      return wakeFailed(record, input, now, settings);
    default:
      return unreachable(input);
  }
}

function suspended(
  record: SandboxRecord,
  { checkpointId, checkpoint }: Extract<SandboxInput, { type: "suspended" }>,
  now: number,
  settings: Settings,
): Decision | null {
  const { phase, generation } = record;
  if (phase.name !== "suspending" || phase.saving || phase.checkpointId !== checkpointId) return null;
  const lease = nextLease(record.lease, { type: "need_stop", reason: "standby", generation }, now, settings);
  if (lease === null) return null;
  const keeperBootId = record.instance?.keeperBootId ?? null;
  const kept = checkpoint === null ? null : { ...checkpoint, keeperBootId };
  const next = { ...enter(record, { name: "standby", checkpoint: kept, failedWakes: 0 }, now), lease };
  const message =
    checkpoint === null
      ? "The files are kept and the processes were ended; the next call starts the sandbox again."
      : "The memory is on disk; the next call wakes the sandbox.";
  return outcome(next, now, [["sandbox.standby", message, { sizeBytes: checkpoint?.sizeBytes ?? 0 }]]);
}

/**
 * Starts a wake, once nothing of the last instance remains. A sandbox without a checkpoint is launched again on its
 * files.
 */
function wake(
  record: SandboxRecord,
  { deadline }: Extract<SandboxInput, { type: "wake" }>,
  now: number,
  settings: Settings,
): Decision | null {
  const { phase } = record;
  if (phase.name !== "standby" || record.lease.state !== "none") return null;
  const { checkpoint, failedWakes } = phase;
  if (checkpoint === null) {
    // A sandbox in standby has served before, so a launch on its files must not be treated as its first launch.
    const served = { ...record, restarts: record.restarts ?? { since: now, count: 0 } };
    return outcome(enter(served, { name: "queued", restart: FILES_ONLY }, now), now, [
      ["sandbox.waking", FILES_ONLY.message, { kind: "files" }],
    ]);
  }
  const generation = record.generation + 1;
  const hold = { type: "hold", generation, startupDeadline: deadline } as const;
  const lease = nextLease(record.lease, hold, now, settings);
  if (lease === null) return null;
  const waking = { name: "waking", checkpoint, consumed: false, failedWakes, deadline } as const;
  const next = { ...enter(record, waking, now), generation, lease, instance: null };
  return outcome(next, now, [["sandbox.waking", "The memory is being restored.", { kind: "memory" }]]);
}

const FILES_ONLY: Cause = {
  code: "files_standby",
  message: "Standby kept only the files; the sandbox is started again on them.",
};

/**
 * Decides what follows a failed wake. The sandbox returns to standby for another attempt, except in three cases:
 * processes from the checkpoint may have run, the checkpoint is unusable, or too many wakes have failed. In these cases
 * the memory is lost.
 */
function wakeFailed(
  record: SandboxRecord,
  { generation, cause, blame }: Extract<SandboxInput, { type: "wake_failed" }>,
  now: number,
  settings: Settings,
): Decision | null {
  const { phase } = record;
  if (phase.name !== "waking" || record.generation !== generation) return null;
  const failedWakes = phase.failedWakes + (blame === "nothing" ? 0 : 1);
  if (phase.consumed || blame === "checkpoint" || failedWakes >= WAKES_MAX) {
    const lose = phase.checkpoint.restored ? restart : loseMemory;
    const decision = lose(record, cause, now, settings);
    const lost = eventOf(record, now, ["sandbox.memory_lost", cause.message, { cause }]);
    return { ...decision, events: [lost, ...decision.events] };
  }
  const order = { type: "need_stop", reason: "standby", generation } as const;
  const lease = nextLease(record.lease, order, now, settings) ?? record.lease;
  const back = { name: "standby", checkpoint: phase.checkpoint, failedWakes } as const;
  const next = { ...enter(record, back, now), lease, instance: null };
  return outcome(next, now, [["sandbox.wake_failed", cause.message, { cause, failedWakes }]]);
}

const WAKES_MAX = 2;
