import type { AttemptId, Cause, CheckpointId, Counter, Numbers, StandbyKind } from "@holdfast/contract";
import type { Checkpoint, Instance, NewEvent } from "../ports/index.ts";
import type { PhaseState, SandboxRecord, SandboxSpec } from "../ports/records.ts";

/** This file contains the inputs and the result of a transition, and the helpers that all transitions share. */

/**
 * Everything that can happen to a sandbox, except to its mounts. An input with a stale generation or attempt id is
 * ignored.
 */
export type SandboxInput =
  | { type: "launch"; deadline: number }
  | { type: "launched"; generation: number; instance: Instance; pid: number | null }
  /**
   * A proof has passed. `provenAt` becomes the time of the transition, because the sandbox has been running since then.
   */
  | {
      type: "proven";
      generation: number;
      provenAt: number;
      keeperBootId: string;
      /** Set if a drive is missing, so that the sandbox serves without it. */
      lacking?: Cause | undefined;
    }
  | { type: "launch_failed"; cause: Cause }
  /** The server stopped during the launch, and no running instance was found. */
  | { type: "launch_interrupted"; cause: Cause }
  | { type: "pause" }
  | {
      type: "suspend";
      checkpointId: CheckpointId;
      kind: StandbyKind;
      deadline: number;
      why: string;
      saving?: true;
    }
  /** The suspension failed; the sandbox keeps running. */
  | { type: "suspend_failed"; checkpointId: CheckpointId; cause: Cause }
  /** The memory is on disk, or was dropped in a standby that keeps only files. */
  | { type: "suspended"; checkpointId: CheckpointId; checkpoint: Checkpoint | null }
  /** A checkpoint was saved to disk; the sandbox keeps running. */
  | { type: "saved"; checkpointId: CheckpointId; name: string; sizeBytes: number }
  /** The files were copied for a backup or an export, and the sandbox keeps running. */
  | { type: "copied"; checkpointId: CheckpointId }
  | { type: "wake"; deadline: number }
  /** The instance is restored and still frozen. Storing this input marks the checkpoint as spent. */
  | { type: "restored"; generation: number; instance: Instance }
  | { type: "wake_failed"; generation: number; cause: Cause; blame: WakeBlame }
  | { type: "resume" }
  | { type: "died"; generation: number; cause: Cause }
  /** The sandbox does not serve and could not be healed. Its processes may still exist. */
  | { type: "given_up"; generation: number; cause: Cause }
  /** A caller requests a restart on the files, for a running sandbox or for a failed one that has files. */
  | { type: "restart"; cause: Cause }
  /** Processes of a sandbox were observed although its record says that it has none. */
  | { type: "lingered" }
  | { type: "delete"; cause: Cause | null }
  | { type: "stop_attempt"; attemptId: AttemptId; deadline: number }
  | { type: "stop_failed"; attemptId: AttemptId; error: string }
  | { type: "absence_observed"; attemptId: AttemptId }
  /** The spec is changed. */
  | { type: "update"; spec: SandboxSpec; what: string };

/**
 * What is blamed for a failed wake. `nothing`: the server stopped. `try`: the failure uses up one of the limited tries.
 * `checkpoint`: the checkpoint can never be restored.
 */
type WakeBlame = "nothing" | "try" | "checkpoint";

/** The result of a transition, stored in one commit. */
export interface Decision {
  record: SandboxRecord;
  events: NewEvent[];
  counters: Partial<Record<Counter, number>>;
}

export type Settings = Pick<
  Numbers,
  "stopBackoffMs" | "exhaustedRecheckMs" | "failedKeptMs" | "restartsMax" | "restartWindowMs"
>;

export const enter = (record: SandboxRecord, phase: PhaseState, now: number): SandboxRecord => ({
  ...record,
  phase,
  transitionedAt: now,
});

type EventParts = [type: NewEvent["type"], message: string, data?: Record<string, unknown>];

export function eventOf(
  { id: sandboxId, generation }: SandboxRecord,
  at: number,
  [type, message, data = {}]: EventParts,
): NewEvent {
  return { at, type, sandboxId, generation, message, data };
}

export const outcome = (record: SandboxRecord, now: number, what: EventParts[]): Decision => ({
  record,
  events: what.map((each) => eventOf(record, now, each)),
  counters: {},
});
