/** What the store keeps. Times are milliseconds since the epoch. */
import type {
  AlertId,
  AlertKind,
  AlertUnit,
  AttemptId,
  Cause,
  CheckpointId,
  ConnectBy,
  DeliveryId,
  DeliveryState,
  Dispatched,
  DriveId,
  Environment,
  ExecId,
  ExecStatus,
  Labels,
  Lifecycle,
  OnWake,
  PreviewId,
  ProcessEnd,
  ProcessId,
  ReadyWhen,
  Resources,
  SandboxId,
  Severity,
  StandbyKind,
  StopReason,
  TerminalSize,
  TokenId,
} from "@holdfast/contract";
import type { Checkpoint, Instance, KeepPolicy, MountPoint } from "./ports.ts";

export interface SandboxSpec {
  image: string;
  env: Environment;
  cwd: string | null;
  resources: Resources;
  lifecycle: Lifecycle;
  labels: Labels;
}

/** A checkpoint, with what the record must remember of the instance whose memory it is. */
export interface KeptMemory extends Checkpoint {
  keeperBootId: string | null;
}

/** The phase with the data that only this phase has. */
export type PhaseState =
  /** To be launched; again, where its memory was lost and its policy says so. */
  | { name: "queued"; restart?: Cause }
  | { name: "launching"; deadline: number }
  | { name: "running" }
  /** Frozen in memory, at the user's wish. */
  | { name: "paused" }
  /** Its memory is being written to disk, under this id. Until that is done it is a running instance, frozen or not. */
  | {
      name: "suspending";
      checkpointId: CheckpointId;
      kind: StandbyKind;
      deadline: number;
      /** A copy is kept and it goes on: it is not on its way to sleep. */
      saving?: true;
    }
  /** What is left of the instance, if anything, owes a stop. The checkpoint is null where only files were kept. */
  | { name: "standby"; checkpoint: KeptMemory | null; failedWakes: number }
  /** `consumed` once processes may have run that came out of the checkpoint: from then on it is never used again. */
  | {
      name: "waking";
      checkpoint: KeptMemory;
      consumed: boolean;
      /** Of this checkpoint, that were given up before anything ran. */
      failedWakes: number;
      deadline: number;
    }
  | { name: "deleting"; cause: Cause | null }
  | { name: "gone"; cause: Cause | null }
  | { name: "failed"; cause: Cause; keptUntil: number };

/**
 * The durable right to, and duty over, the processes of one instance. It is stored before the physical act that it
 * allows and given up only after absence was observed.
 */
export type Lease =
  | { state: "none" }
  | { state: "held"; generation: number; startupDeadline: number; hostBootId: string | null }
  | {
      state: "stop_needed";
      reason: StopReason;
      generation: number;
      attempts: number;
      nextAttemptAt: number;
      lastError: string | null;
    }
  | {
      state: "stopping";
      reason: StopReason;
      generation: number;
      attempts: number;
      attemptId: AttemptId;
      deadline: number;
    }
  | {
      state: "exhausted";
      reason: StopReason;
      generation: number;
      attempts: number;
      nextAttemptAt: number;
      lastError: string | null;
    }
  /** Its stored form could not be read. It is kept as it was, blocks launch and delete, and is shown. */
  | { state: "quarantined"; raw: string };

/** What a fork began with. */
export interface Origin {
  sandboxId: SandboxId;
  /** What it was called then. */
  sandboxName: string;
  checkpointId: CheckpointId;
  kind: StandbyKind;
  /** Of the instance that the checkpoint is of. A fork counts on from it: its keeper takes no smaller one. */
  generation: number;
  keeperBootId: string | null;
  execs: readonly ForkedExec[];
  processes: readonly ForkedProcess[];
}

/** One process under three names, as an exec; its runs are called by it and a number, also those that are still to come. */
export interface ForkedProcess {
  id: ProcessId;
  from: ProcessId;
  keeperId: ProcessId;
}

/** One exec under three names: its own, the one it has where it was forked from, and what its keeper calls it. */
export interface ForkedExec {
  id: ExecId;
  from: ExecId;
  keeperId: ExecId;
}

/** What is told of a checkpoint that stays until it is removed. */
export interface CheckpointSummary {
  id: CheckpointId;
  sandboxId: SandboxId;
  name: string;
  kind: StandbyKind;
  generation: number;
  createdAt: number;
  /** All of it, and the memory's part of that. */
  sizeBytes: number;
  memoryBytes: number;
  /** Those that its memory has. */
  execIds: readonly ExecId[];
}

/** All of it: any number of sandboxes may begin with one. It can be large, and is read one at a time. */
export interface SavedCheckpoint extends CheckpointSummary {
  keeperBootId: string | null;
  /** Of the sandbox, as it was. */
  spec: SandboxSpec;
  sandboxName: string;
  execs: readonly SavedExec[];
  /** Those that were not over. */
  processes: readonly SavedProcess[];
}

export interface SavedProcess
  extends Pick<ProcessRecord, "id" | "name" | "spec" | "digest" | "run" | "restarts"> {
  keeperId: ProcessId;
}

export interface SavedExec {
  id: ExecId;
  keeperId: ExecId;
  spec: ExecSpec;
  digest: string;
  startedAt: number | null;
}

export interface SandboxRecord {
  id: SandboxId;
  name: string;
  /** Whether the name still belongs to it; given back by failure of the launch and by deletion. */
  nameHeld: boolean;
  phase: PhaseState;
  generation: number;
  /** The generation whose launch began the memory that it has now: a wake brings that back under a later one. */
  memorySince: number;
  lease: Lease;
  instance: Instance | null;
  spec: SandboxSpec;
  createdAt: number;
  lastActivityAt: number;
  /** Of the last change of phase; a proof counts only if it is newer. */
  transitionedAt: number;
  endedAt: number | null;
  /** The key that it was created with; null where there was none. */
  owner: string | null;
  /** Counted with every exec that is stored. */
  execsStarted: number;
  /** Null where it began from an image. */
  forkedFrom: Origin | null;
  /** Drives that it is to have, mounted or not; stored before any of them is. */
  mounts: readonly MountRecord[];
  /** Cold starts since `since`; null where there were none. */
  restarts: { since: number; count: number } | null;
  /** Grows by one with every update. */
  revision: number;
}

/** A mount that was asked for. It is forgotten only when it was seen to be gone. */
export interface MountRecord extends MountPoint {
  /** The drive's name. */
  drive: string;
  /** `removing`: it was given up again, and is being taken off. */
  state: "wanted" | "removing";
}

export interface DriveRecord {
  id: DriveId;
  name: string;
  /** Stored before anything is made, and before anything is removed. */
  phase: "making" | "ready" | "deleting";
  sizeMb: number | null;
  labels: Labels;
  owner: string | null;
  createdAt: number;
  revision: number;
}

export interface ExecSpec {
  argv: readonly string[];
  env: Environment;
  cwd: string;
  user: string;
  timeoutMs: number | null;
  /** Null: /dev/null. The text is kept so that a restart can give it to the command from where it had got. */
  stdin: { text: string; end: boolean } | null;
  /** The terminal that it was started with; null: pipes. */
  tty: TerminalSize | null;
  keepAwake: boolean;
  onWake: OnWake | null;
}

export interface ExecRecord {
  id: ExecId;
  sandboxId: SandboxId;
  generation: number;
  spec: ExecSpec;
  digest: string;
  status: ExecStatus;
  exitCode: number | null;
  signal: string | null;
  cause: Cause | null;
  dispatched: Dispatched;
  /** Cursor of the journal's end when the exec ended. */
  outputEnd: number;
  createdAt: number;
  startedAt: number | null;
  endedAt: number | null;
}

/** A port of a sandbox that can be reached without a key. */
export interface PreviewRecord {
  id: PreviewId;
  sandboxId: SandboxId;
  name: string;
  port: number;
  /** Whether no token is needed. */
  public: boolean;
  createdAt: number;
  expiresAt: number | null;
  /** What opens it. Their secret part is not kept: it is a signature over all that they are good for. */
  tokens: readonly TokenRecord[];
}

export interface TokenRecord {
  id: TokenId;
  createdAt: number;
  expiresAt: number;
}
export interface ProcessSpec {
  /** What every run of it is. */
  command: ExecSpec;
  /** Null: it is not started again. */
  restart: KeepPolicy | null;
  readyWhen: ReadyWhen | null;
  connectBy: ConnectBy | null;
}

/** A named process. What its keeper does with it is asked of that; here is what must be known without it. */
export interface ProcessRecord {
  id: ProcessId;
  sandboxId: SandboxId;
  name: string;
  spec: ProcessSpec;
  /** Of the spec; every run has it. */
  digest: string;
  /** The number of the last run that is on record. */
  run: number;
  /** In which that began. */
  generation: number;
  /** In a row, as its keeper told last. */
  restarts: number;
  /** What somebody wants of it and is not done yet. A restart is done by a run behind the given one. */
  order: { do: "stop" } | { do: "restart"; after: number } | null;
  /** What was seen of a run; null where nothing was yet. */
  seen: Seen | null;
  /** How it is over, where it is: nothing of it runs, and nothing starts it again. */
  end: { state: ProcessEnd; cause: Cause | null; at: number } | null;
  createdAt: number;
  revision: number;
}

/** That a run was ready, or was not in time, in one generation of its sandbox. */
export type Seen = { run: number; generation: number; at: number } & (
  | { state: "ready"; how: "port" | "output" }
  /** `said`: the text that it is ready by was written before, which stays so. */
  | { state: "unready"; cause: Cause; said?: boolean }
);

/** One firing of an alert. What it was measured against is kept with it: the numbers may be others by the next start. */
export interface AlertRecord {
  id: AlertId;
  key: string;
  kind: AlertKind;
  severity: Severity;
  sandboxId: SandboxId | null;
  message: string;
  unit: AlertUnit;
  value: number;
  threshold: number;
  clearBelow: number;
  target: number | null;
  firedAt: number;
  /** Null as long as it fires. */
  clearedAt: number | null;
}

/** A message about an alert to whoever is to be told; stored with what it tells of, in one commit. */
export interface DeliveryRecord {
  id: DeliveryId;
  state: DeliveryState;
  /** As it was when there was something to tell. */
  alert: AlertRecord;
  /** Tries since it was last begun. */
  attempts: number;
  createdAt: number;
  /** Of one that is pending. */
  nextAttemptAt: number | null;
  deliveredAt: number | null;
  lastError: string | null;
}
