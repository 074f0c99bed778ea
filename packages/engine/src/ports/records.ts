/** The records in the store. Times are milliseconds since the epoch. */
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
import type { Checkpoint, Instance, MountPoint, SupervisePolicy } from "./index.ts";

export interface SandboxSpec {
  image: string;
  env: Environment;
  cwd: string | null;
  resources: Resources;
  lifecycle: Lifecycle;
  labels: Labels;
}

/** A standby checkpoint, with the boot id of the keeper whose memory it contains. */
export interface KeptMemory extends Checkpoint {
  keeperBootId: string | null;
  /**
   * Set if the checkpoint came from a backup. If its memory can't be restored here, the sandbox starts again on its
   * files, even if its policy forbids that: the caller requested the restore to get the files.
   */
  restored?: true;
}

/** The phase of a sandbox, with the data that only this phase needs. */
export type PhaseState =
  /**
   * The sandbox waits to be launched. `restart` is set if an earlier instance lost its memory and the policy allows a
   * cold start; it says why the memory was lost.
   */
  | { name: "queued"; restart?: Cause }
  | { name: "launching"; deadline: number }
  | { name: "running" }
  /** The sandbox is frozen in memory, on request. */
  | { name: "paused" }
  /**
   * The memory is being written to disk under this checkpoint id. Until the write is complete the instance exists,
   * either running or frozen.
   */
  | {
      name: "suspending";
      checkpointId: CheckpointId;
      kind: StandbyKind;
      deadline: number;
      /** Set if a named checkpoint is being saved: the sandbox serves again afterwards and does not enter standby. */
      saving?: true;
    }
  /**
   * The sandbox is in standby. If parts of the instance are left, the lease requires a stop. `checkpoint` is null if
   * only files were kept.
   */
  | { name: "standby"; checkpoint: KeptMemory | null; failedWakes: number }
  /**
   * The sandbox is waking. `consumed`: whether processes restored from the checkpoint may have run. If so, the
   * checkpoint is never used again.
   */
  | {
      name: "waking";
      checkpoint: KeptMemory;
      consumed: boolean;
      /** Number of wakes from this checkpoint that failed before any process ran. */
      failedWakes: number;
      deadline: number;
    }
  | { name: "deleting"; cause: Cause | null }
  | { name: "gone"; cause: Cause | null }
  | { name: "failed"; cause: Cause; keptUntil: number };

/**
 * The durable permission to run the processes of one instance, and the duty to stop them. A lease is stored before the
 * instance is started, and released only after the instance was observed to be absent.
 */
export type Lease =
  | { state: "none" }
  | { state: "held"; generation: number; startupDeadline: number }
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
  /** The stored lease is unreadable. It stays as it is, blocks launch and delete, and is shown to callers. */
  | { state: "quarantined"; raw: string };

/** The checkpoint from which a fork was made. */
export interface Origin {
  sandboxId: SandboxId;
  /** The name that the source sandbox had at the time of the fork. */
  sandboxName: string;
  checkpointId: CheckpointId;
  kind: StandbyKind;
  /**
   * The generation of the checkpointed instance. The fork's generations start above this number, because the keeper in
   * the restored memory accepts no smaller generation.
   */
  generation: number;
  keeperBootId: string | null;
  execs: readonly ForkedExec[];
  processes: readonly ForkedProcess[];
}

/**
 * A process of a fork. Like an exec of a fork, it has three ids: its own, the one in the source sandbox, and the one
 * that the keeper uses. The id of each of its runs, including future ones, is the id of the process followed by a
 * number.
 */
export interface ForkedProcess {
  id: ProcessId;
  from: ProcessId;
  keeperId: ProcessId;
}

/** An exec of a fork. It has three ids: its own, the one in the source sandbox, and the one that the keeper uses. */
interface ForkedExec {
  id: ExecId;
  from: ExecId;
  keeperId: ExecId;
}

/** The part of a saved checkpoint's record that listings show. */
export interface CheckpointSummary {
  id: CheckpointId;
  sandboxId: SandboxId;
  name: string;
  kind: StandbyKind;
  generation: number;
  createdAt: number;
  /** Size of the whole checkpoint, including its memory. */
  sizeBytes: number;
  /** Size of the checkpoint's memory. */
  memoryBytes: number;
  /** The execs in the checkpoint's memory. */
  execIds: readonly ExecId[];
}

/**
 * The complete record of a saved checkpoint, from which any number of sandboxes can be forked. Because a record can be
 * large, only one is read at a time.
 */
export interface SavedCheckpoint extends CheckpointSummary {
  keeperBootId: string | null;
  /** The spec that the sandbox had when the checkpoint was taken. */
  spec: SandboxSpec;
  sandboxName: string;
  execs: readonly SavedExec[];
  /** The processes that had not ended when the checkpoint was taken. */
  processes: readonly SavedProcess[];
}

export interface SavedProcess
  extends Pick<ProcessRecord, "id" | "name" | "spec" | "digest" | "run" | "restarts"> {
  keeperId: ProcessId;
}

interface SavedExec {
  id: ExecId;
  keeperId: ExecId;
  spec: ExecSpec;
  digest: string;
  startedAt: number | null;
}

export interface SandboxRecord {
  id: SandboxId;
  name: string;
  /** Whether the sandbox still holds its name. A failed first launch and a delete release the name. */
  nameHeld: boolean;
  phase: PhaseState;
  generation: number;
  /** The generation whose launch created the current memory. A wake restores that memory under a later generation. */
  memorySince: number;
  lease: Lease;
  instance: Instance | null;
  spec: SandboxSpec;
  createdAt: number;
  lastActivityAt: number;
  /** When the phase last changed. Only a proof from after this time is valid. */
  transitionedAt: number;
  endedAt: number | null;
  /** Id of the API key that created the sandbox; null if no key was used. */
  owner: string | null;
  /** Number of execs stored so far. */
  execsStarted: number;
  /** The origin of a fork; null if the sandbox was created from an image. */
  forkedFrom: Origin | null;
  /** The requested mounts, including those that are not made yet. Each mount is stored before it is made. */
  mounts: readonly MountRecord[];
  /**
   * The number of cold starts since `since`; null if there were none. `restoredAt` is set if the sandbox came from a
   * backup or an import. In that case a failure never removes its files.
   */
  restarts: { since: number; count: number; restoredAt?: number } | null;
  /** Grows by one with every update. */
  revision: number;
}

/** A requested mount. It is removed from the record only after it was observed to be absent. */
export interface MountRecord extends MountPoint {
  /** The drive's name. */
  drive: string;
  /** `removing`: the unmount was requested and is in progress. */
  state: "wanted" | "removing";
}

export interface DriveRecord {
  id: DriveId;
  name: string;
  /** The phase. It is stored before the drive is created, and before the drive is removed. */
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
  /**
   * The text that the command gets on stdin; null means /dev/null. It is stored so that a restarted server can send the
   * rest of the text to the command.
   */
  stdin: { text: string; end: boolean } | null;
  /** The terminal's size at the start; null if the command has pipes. */
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
  /** The cursor of the journal's end at the time when the exec ended. */
  outputEnd: number;
  createdAt: number;
  startedAt: number | null;
  endedAt: number | null;
}

/** Headers, by name, that a preview sets on the requests and responses that pass through it. */
export interface PreviewHeaders {
  request: Readonly<Record<string, string>>;
  response: Readonly<Record<string, string>>;
}

/** A port of a sandbox that can be reached without an API key. */
export interface PreviewRecord {
  id: PreviewId;
  sandboxId: SandboxId;
  name: string;
  port: number;
  /** Whether the port can be reached without a token. */
  public: boolean;
  createdAt: number;
  expiresAt: number | null;
  /** The headers that the preview sets; absent if there are none. */
  headers?: PreviewHeaders | undefined;
  /**
   * The valid tokens. The secret part of a token is not stored: it is a signature over the preview, the token's id and
   * the expiry.
   */
  tokens: readonly TokenRecord[];
}

export interface TokenRecord {
  id: TokenId;
  createdAt: number;
  expiresAt: number;
}
export interface ProcessSpec {
  /** The command that every run executes. */
  command: ExecSpec;
  /** The restart policy; null if the process is never restarted. */
  restart: SupervisePolicy | null;
  readyWhen: ReadyWhen | null;
  connectBy: ConnectBy | null;
}

/**
 * A named process. The keeper knows the state of its runs; the record holds what the server must know when no keeper
 * runs.
 */
export interface ProcessRecord {
  id: ProcessId;
  sandboxId: SandboxId;
  name: string;
  spec: ProcessSpec;
  /** The digest of the spec; it is the same for every run. */
  digest: string;
  /** Number of the last recorded run. */
  run: number;
  /** The sandbox's generation in which the last recorded run began. */
  generation: number;
  /** Number of consecutive restarts, as last reported by the keeper. */
  restarts: number;
  /**
   * A request of a caller that is not fulfilled yet. A restart is fulfilled once a run with a number greater than
   * `after` has begun.
   */
  order: { do: "stop" } | { do: "restart"; after: number } | null;
  /** The last observed readiness of a run; null before the first observation. */
  seen: Seen | null;
  /** How the process ended; null if it has not ended. Once it is set, no run exists and none will follow. */
  end: { state: ProcessEnd; cause: Cause | null; at: number } | null;
  createdAt: number;
  revision: number;
}

/** The observation, in one generation of the sandbox, that a run was ready or was not ready in time. */
export type Seen = { run: number; generation: number; at: number } & (
  | { state: "ready"; how: "port" | "output" }
  /**
   * `said`: whether the run has already written the text that makes it ready. If so, the run need not write the text
   * again.
   */
  | { state: "unready"; cause: Cause; said?: boolean }
);

/**
 * One firing of an alert. It includes the thresholds that applied then, because they may change with a restart of the
 * server.
 */
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
  /** When the alert cleared; null while it fires. */
  clearedAt: number | null;
}

/** A message about an alert for the webhook. It is stored in the same commit as the change that it reports. */
export interface DeliveryRecord {
  id: DeliveryId;
  state: DeliveryState;
  /** The alert as it was at the time of the change. */
  alert: AlertRecord;
  /** Number of attempts since the delivery was created or last retried by a caller. */
  attempts: number;
  createdAt: number;
  /** When the next attempt is due; null unless the delivery is pending. */
  nextAttemptAt: number | null;
  deliveredAt: number | null;
  lastError: string | null;
}
