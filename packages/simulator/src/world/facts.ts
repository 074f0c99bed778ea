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

/** Something that happened, told at the very moment, so that a promise about moments can be checked. */
export type Fact =
  /** A process of a sandbox came into being. */
  | { type: "spawned"; sandboxId: SandboxId; generation: number }
  /** A sandbox is launched for the first time, and files of it are there. */
  | { type: "begun-on-files"; sandboxId: SandboxId }
  /** One came into being with a copy of another's memory. */
  | { type: "forked"; sandboxId: SandboxId; instance: SimulatedInstance }
  /** The files of a sandbox were removed. */
  | { type: "destroyed"; sandboxId: SandboxId }
  /** An instance that was held runs, or runs on. */
  | { type: "goes-on"; sandboxId: SandboxId; instance: SimulatedInstance; memory: number; disk: number }
  /** A sandbox did something that its files know more before than its memory. */
  | { type: "behind"; sandboxId: SandboxId; memory: number; disk: number }
  /** A checkpoint, or a copy that is kept, was cut short, lost or exchanged. */
  | { type: "harmed"; id: CheckpointId }
  /** The directory of a drive came into being, or is removed, or a part of it. */
  | { type: "drive-made" | "drive-removed"; id: DriveId }
  /** Somebody looked at drives, and could see nothing. */
  | { type: "drives-unseen" }
  /** Something was written in a sandbox: into a drive, or onto its own disk. */
  | { type: "wrote"; sandboxId: SandboxId; path: string; driveId: DriveId | null }
  /** A caller's mount was answered with this. */
  | { type: "mounted"; sandboxId: SandboxId; mount: Mount }
  /** A caller was told this of a drive. */
  | { type: "told-drive"; drive: Drive }
  /** A caller's pause was answered with this sandbox. */
  | { type: "paused"; sandbox: Sandbox }
  /** A command began to run, because somebody asked for it or as the next run of a row. */
  | {
      type: "command";
      sandboxId: SandboxId;
      id: ExecId;
      digest: string;
      isProof: boolean;
      why: "asked" | "next";
    }
  | { type: "command-ended"; sandboxId: SandboxId; exec: KeeperExec }
  /** The database has taken this. */
  | { type: "stored"; change: Change }
  /** The record of a sandbox was removed. */
  | { type: "pruned"; record: SandboxRecord; goneBefore: number }
  /** The record of an exec was removed. */
  | { type: "forgotten"; record: ExecRecord }
  /** A caller wants an exec to be ended, or a sandbox, a checkpoint or a drive to be deleted, though it is in use or not. */
  | { type: "unwanted"; id: string; force?: boolean }
  /** An operator says that there is an emergency. */
  | { type: "emergency" }
  /** A caller was told that stdin has all of this. */
  | { type: "typed"; id: ExecId; text: string }
  /** A keeper was told to end one. */
  | { type: "cancelled"; sandboxId: SandboxId; id: ExecId; livedMs: number; timeoutMs: number }
  /** Somebody wanted to know from a journal how its exec ended, and could not. */
  | { type: "journal-unread"; sandboxId: SandboxId; id: ExecId }
  /** A caller's create was answered with this sandbox. */
  | {
      type: "created";
      sandbox: Sandbox;
      request: string;
      key: string | null;
      existed: boolean;
      /** Whether the caller waited for it to be ready. */
      waited: boolean;
    }
  /** A caller was told this of a sandbox or an exec. */
  | { type: "told-sandbox"; sandbox: Sandbox }
  | { type: "told-exec"; exec: Exec; askedAt: number }
  | { type: "told-process"; process: Process }
  /** A caller was refused. */
  | { type: "refused"; call: string; ref: string | null; error: unknown }
  /** The engine asks the world for something again and again, and never lets time pass. */
  | { type: "spun" }
  /** A promise was rejected and nobody had thought of that: a server ends itself then. */
  | { type: "unhandled"; error: unknown };
