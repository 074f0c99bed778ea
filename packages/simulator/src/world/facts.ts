import type {
  CheckpointId,
  Drive,
  DriveId,
  Exec,
  ExecId,
  Mount,
  Process,
  Sandbox,
  SandboxId,
} from "@holdfast/contract";
import type { Change, ExecRecord, KeeperExec, SandboxRecord } from "@holdfast/engine";
import type { SimulatedInstance } from "./host.ts";

/** An event, reported at the moment at which it happens, so that promises about single moments can be checked. */
export type Fact =
  /** A process of a sandbox was started. */
  | { type: "spawned"; sandboxId: SandboxId; generation: number }
  /** A sandbox is launched on files of an earlier launch, although this launch is not a restart. */
  | { type: "begun-on-files"; sandboxId: SandboxId }
  /** A sandbox was started with a copy of another's memory. */
  | { type: "forked"; sandboxId: SandboxId; instance: SimulatedInstance }
  /** The files of a sandbox were removed. */
  | { type: "destroyed"; sandboxId: SandboxId }
  /**
   * An instance that was stopped or frozen runs again. `memory` and `disk` are the numbers of actions recorded in its
   * memory and in its files.
   */
  | { type: "resumed"; sandboxId: SandboxId; instance: SimulatedInstance; memory: number; disk: number }
  /** A sandbox performed an action although its memory and its files had recorded different numbers of actions. */
  | { type: "behind"; sandboxId: SandboxId; memory: number; disk: number }
  /** A fault truncated, removed or replaced a checkpoint. */
  | { type: "harmed"; id: CheckpointId }
  /** The directory of a drive was created, or removed completely or partly. */
  | { type: "drive-made" | "drive-removed"; id: DriveId }
  /** Drives could not be observed. */
  | { type: "drives-unseen" }
  /** A write in a sandbox: into a drive, or onto the sandbox's own disk. */
  | { type: "wrote"; sandboxId: SandboxId; path: string; driveId: DriveId | null }
  /** The answer to a mount request. */
  | { type: "mounted"; sandboxId: SandboxId; mount: Mount }
  /** A drive as reported to a caller. */
  | { type: "reported-drive"; drive: Drive }
  /** The answer to a pause request. */
  | { type: "paused"; sandbox: Sandbox }
  /** A command started, on request or as the next run of a supervised process. */
  | {
      type: "command";
      sandboxId: SandboxId;
      id: ExecId;
      digest: string;
      isProof: boolean;
      why: "asked" | "next";
    }
  | { type: "command-ended"; sandboxId: SandboxId; exec: KeeperExec }
  /** A change committed to the database. */
  | { type: "stored"; change: Change }
  /** The record of a sandbox was removed. */
  | { type: "pruned"; record: SandboxRecord; goneBefore: number }
  /** The record of an exec was removed. */
  | { type: "forgotten"; record: ExecRecord }
  /** A caller asked to end an exec, or to delete a sandbox, checkpoint or drive, possibly with `force`. */
  | { type: "unwanted"; id: string; force?: boolean }
  /** An operator requested an emergency cleanup. */
  | { type: "emergency" }
  /** A caller received confirmation that the exec's stdin accepted all of `text`. */
  | { type: "typed"; id: ExecId; text: string }
  /** A keeper was asked to end an exec. */
  | { type: "cancelled"; sandboxId: SandboxId; id: ExecId; livedMs: number; timeoutMs: number }
  /** The journal of an exec could not be read when it was needed to find the exec's end. */
  | { type: "journal-unread"; sandboxId: SandboxId; id: ExecId }
  /** The answer to a create request. */
  | {
      type: "created";
      sandbox: Sandbox;
      request: string;
      key: string | null;
      existed: boolean;
      /** Whether the caller waited until the sandbox was ready. */
      waited: boolean;
    }
  /** A sandbox or exec as reported to a caller. */
  | { type: "reported-sandbox"; sandbox: Sandbox }
  | { type: "reported-exec"; exec: Exec; askedAt: number }
  | { type: "reported-process"; process: Process }
  /** A caller's request was refused with an error. */
  | { type: "refused"; call: string; ref: string | null; error: unknown }
  /** The engine made calls in an endless loop, in which virtual time does not pass. */
  | { type: "spun" }
  /** A promise rejection that no code handles. It ends a real server. */
  | { type: "unhandled"; error: unknown };
