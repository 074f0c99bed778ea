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
  readonly image: string;
  readonly env: Environment;
  readonly cwd: string | null;
  readonly resources: Resources;
  readonly lifecycle: Lifecycle;
  readonly labels: Labels;
}

/** A standby checkpoint, with the boot id of the keeper whose memory it contains. */
export interface KeptMemory extends Checkpoint {
  readonly keeperBootId: string | null;
  /**
   * Set if the checkpoint came from a backup. If its memory can't be restored on this host, the sandbox starts again on
   * its files, even if its policy forbids that: the caller requested the restore to get the files.
   */
  readonly restored?: true;
}

/** The phase of a sandbox, with the data that only this phase needs. */
export type PhaseState =
  /**
   * The sandbox waits to be launched. `restart` is set if an earlier instance lost its memory and the policy allows a
   * cold start; its value is the cause of the loss.
   */
  | { readonly name: "queued"; readonly restart?: Cause }
  | { readonly name: "launching"; readonly deadline: number }
  | { readonly name: "running" }
  /** The sandbox is frozen in memory, on request. */
  | { readonly name: "paused" }
  /**
   * The memory is being written to disk under `checkpointId`. Until the write is complete the instance exists, either
   * running or frozen.
   */
  | {
      readonly name: "suspending";
      readonly checkpointId: CheckpointId;
      readonly kind: StandbyKind;
      readonly deadline: number;
      /**
       * Set if the sandbox is suspended only to be copied, for a named checkpoint, a backup or an export. It serves
       * again afterwards and does not enter standby.
       */
      readonly saving?: true;
    }
  /**
   * The sandbox is in standby. If parts of the instance are left, the lease requires a stop. `checkpoint` is null if
   * only files were kept.
   */
  | { readonly name: "standby"; readonly checkpoint: KeptMemory | null; readonly failedWakes: number }
  /**
   * The sandbox is waking. `consumed`: whether processes restored from the checkpoint may have run. If so, the
   * checkpoint is never used again.
   */
  | {
      readonly name: "waking";
      readonly checkpoint: KeptMemory;
      readonly consumed: boolean;
      /** Number of wakes from this checkpoint that failed before any process ran. */
      readonly failedWakes: number;
      readonly deadline: number;
    }
  | { readonly name: "deleting"; readonly cause: Cause | null }
  | { readonly name: "gone"; readonly cause: Cause | null }
  | { readonly name: "failed"; readonly cause: Cause; readonly keptUntil: number };

/**
 * The durable permission to run the processes of one instance, and the duty to stop them. A lease is stored before the
 * instance is started, and released only after the instance was observed to be absent.
 */
export type Lease =
  | { readonly state: "none" }
  | { readonly state: "held"; readonly generation: number; readonly startupDeadline: number }
  | {
      readonly state: "stop_needed";
      readonly reason: StopReason;
      readonly generation: number;
      readonly attempts: number;
      readonly nextAttemptAt: number;
      readonly lastError: string | null;
    }
  | {
      readonly state: "stopping";
      readonly reason: StopReason;
      readonly generation: number;
      readonly attempts: number;
      readonly attemptId: AttemptId;
      readonly deadline: number;
    }
  | {
      readonly state: "exhausted";
      readonly reason: StopReason;
      readonly generation: number;
      readonly attempts: number;
      readonly nextAttemptAt: number;
      readonly lastError: string | null;
    }
  /**
   * The stored lease is unreadable. It stays as it is and is shown to callers, and no launch is possible. Only a delete
   * replaces it.
   */
  | { readonly state: "quarantined"; readonly raw: string };

/** The checkpoint from which a fork was made. */
export interface Origin {
  readonly sandboxId: SandboxId;
  /** The name that the source sandbox had at the time of the fork. */
  readonly sandboxName: string;
  readonly checkpointId: CheckpointId;
  readonly kind: StandbyKind;
  /**
   * The generation of the checkpointed instance. The fork's generations start above this number, because the keeper in
   * the restored memory accepts no smaller generation.
   */
  readonly generation: number;
  readonly keeperBootId: string | null;
  readonly execs: readonly ForkedExec[];
  readonly processes: readonly ForkedProcess[];
}

/**
 * A process of a fork. Like an exec of a fork, it has three ids: its own, the one in the source sandbox, and the one
 * that the keeper uses. The id of each of its runs, including future ones, is the id of the process followed by a
 * number.
 */
export interface ForkedProcess {
  readonly id: ProcessId;
  readonly from: ProcessId;
  readonly keeperId: ProcessId;
}

/** An exec of a fork. It has three ids: its own, the one in the source sandbox, and the one that the keeper uses. */
interface ForkedExec {
  readonly id: ExecId;
  readonly from: ExecId;
  readonly keeperId: ExecId;
}

/** The part of a saved checkpoint's record that listings show. */
export interface CheckpointSummary {
  readonly id: CheckpointId;
  readonly sandboxId: SandboxId;
  readonly name: string;
  readonly kind: StandbyKind;
  readonly generation: number;
  readonly createdAt: number;
  /** Size of the whole checkpoint, including its memory. */
  readonly sizeBytes: number;
  /** Size of the checkpoint's memory. */
  readonly memoryBytes: number;
  /** The execs in the checkpoint's memory. */
  readonly execIds: readonly ExecId[];
}

/**
 * The complete record of a saved checkpoint, from which any number of sandboxes can be forked. Because a record can be
 * large, only one is read at a time.
 */
export interface SavedCheckpoint extends CheckpointSummary {
  readonly keeperBootId: string | null;
  /** The spec that the sandbox had when the checkpoint was taken. */
  readonly spec: SandboxSpec;
  readonly sandboxName: string;
  readonly execs: readonly SavedExec[];
  /** The processes that had not ended when the checkpoint was taken. */
  readonly processes: readonly SavedProcess[];
}

export interface SavedProcess
  extends Pick<ProcessRecord, "id" | "name" | "spec" | "digest" | "run" | "restarts"> {
  readonly keeperId: ProcessId;
}

interface SavedExec {
  readonly id: ExecId;
  readonly keeperId: ExecId;
  readonly spec: ExecSpec;
  readonly digest: string;
  readonly startedAt: number | null;
}

export interface SandboxRecord {
  readonly id: SandboxId;
  readonly name: string;
  /** Whether the sandbox still holds its name. A failed first launch and a delete release the name. */
  readonly nameHeld: boolean;
  readonly phase: PhaseState;
  readonly generation: number;
  /**
   * The generation whose launch created the sandbox's current memory. After a wake, `generation` is higher, but the
   * memory is the same.
   */
  readonly memorySince: number;
  readonly lease: Lease;
  readonly instance: Instance | null;
  readonly spec: SandboxSpec;
  readonly createdAt: number;
  readonly lastActivityAt: number;
  /** When the phase last changed. Only a proof from after this time is valid. */
  readonly transitionedAt: number;
  readonly endedAt: number | null;
  /** Id of the API key that created the sandbox; null if no key was used. */
  readonly owner: string | null;
  /** Number of execs stored so far. */
  readonly execsStarted: number;
  /** The origin of a fork; null if the sandbox was created from an image. */
  readonly forkedFrom: Origin | null;
  /** The requested mounts, including those that are not made yet. Each mount is stored before it is made. */
  readonly mounts: readonly MountRecord[];
  /**
   * The cold starts of the sandbox: `count` is their number since `since`. Null as long as every launch used the image
   * or the checkpoint, and none used the existing files. `restoredAt` is set if the sandbox came from a backup or an
   * import; a failure never removes the files of a sandbox with `restoredAt`.
   */
  readonly restarts: { readonly since: number; readonly count: number; readonly restoredAt?: number } | null;
  /** Grows by one with every update. */
  readonly revision: number;
}

/** A requested mount. Its record is removed only after the mount was observed to be absent. */
export interface MountRecord extends MountPoint {
  /** The drive's name. */
  readonly drive: string;
  /** `wanted`: the drive must be mounted. `removing`: the unmount was requested and is in progress. */
  readonly state: "wanted" | "removing";
}

export interface DriveRecord {
  readonly id: DriveId;
  readonly name: string;
  /** The phase. `making` is stored before the drive is created, and `deleting` before the drive is removed. */
  readonly phase: "making" | "ready" | "deleting";
  readonly sizeMb: number | null;
  readonly labels: Labels;
  readonly owner: string | null;
  readonly createdAt: number;
  readonly revision: number;
}

export interface ExecSpec {
  readonly argv: readonly string[];
  readonly env: Environment;
  readonly cwd: string;
  readonly user: string;
  readonly timeoutMs: number | null;
  /**
   * The text that the command gets on stdin; null means /dev/null. It is stored so that a restarted server can send the
   * rest of the text to the command.
   */
  readonly stdin: { readonly text: string; readonly end: boolean } | null;
  /** The terminal's size at the start; null if the command has pipes. */
  readonly tty: TerminalSize | null;
  readonly keepAwake: boolean;
  readonly onWake: OnWake | null;
}

export interface ExecRecord {
  readonly id: ExecId;
  readonly sandboxId: SandboxId;
  readonly generation: number;
  readonly spec: ExecSpec;
  readonly digest: string;
  readonly status: ExecStatus;
  readonly exitCode: number | null;
  readonly signal: string | null;
  readonly cause: Cause | null;
  readonly dispatched: Dispatched;
  /** The cursor of the journal's end at the time when the exec ended. */
  readonly outputEnd: number;
  readonly createdAt: number;
  readonly startedAt: number | null;
  readonly endedAt: number | null;
}

/** Headers, by name, that a preview sets on the requests and responses that pass through it. */
export interface PreviewHeaders {
  readonly request: Readonly<Record<string, string>>;
  readonly response: Readonly<Record<string, string>>;
}

/** A port of a sandbox that can be reached without an API key. */
export interface PreviewRecord {
  readonly id: PreviewId;
  readonly sandboxId: SandboxId;
  readonly name: string;
  readonly port: number;
  /** Whether the port can be reached without a token. */
  readonly public: boolean;
  readonly createdAt: number;
  readonly expiresAt: number | null;
  /** The headers that the preview sets; absent if there are none. */
  readonly headers?: PreviewHeaders | undefined;
  /**
   * The valid tokens. The secret part of a token is not stored: it is a signature over the preview, the token's id and
   * the expiry.
   */
  readonly tokens: readonly TokenRecord[];
}

export interface TokenRecord {
  readonly id: TokenId;
  readonly createdAt: number;
  readonly expiresAt: number;
}
export interface ProcessSpec {
  /** The command that every run executes. */
  readonly command: ExecSpec;
  /** The restart policy; null if the process is never restarted. */
  readonly restart: SupervisePolicy | null;
  readonly readyWhen: ReadyWhen | null;
  readonly connectBy: ConnectBy | null;
}

/**
 * A named process. The keeper knows the state of its runs; the record holds what the server must know when no keeper
 * runs.
 */
export interface ProcessRecord {
  readonly id: ProcessId;
  readonly sandboxId: SandboxId;
  readonly name: string;
  readonly spec: ProcessSpec;
  /** The digest of the spec; it is the same for every run. */
  readonly digest: string;
  /** Number of the last recorded run. */
  readonly run: number;
  /** The sandbox's generation in which the last recorded run began. */
  readonly generation: number;
  /** Number of consecutive restarts, as last reported by the keeper. */
  readonly restarts: number;
  /**
   * A request of a caller that is not fulfilled yet. A restart is fulfilled once a run with a number greater than
   * `after` has begun.
   */
  readonly order: { readonly do: "stop" } | { readonly do: "restart"; readonly after: number } | null;
  /** The last observed readiness of a run; null before the first observation. */
  readonly seen: Seen | null;
  /** How the process ended; null if it has not ended. Once it is set, no run exists and none will follow. */
  readonly end: { readonly state: ProcessEnd; readonly cause: Cause | null; readonly at: number } | null;
  readonly createdAt: number;
  readonly revision: number;
}

/** The observation, in one generation of the sandbox, that a run was ready or was not ready in time. */
export type Seen = { readonly run: number; readonly generation: number; readonly at: number } & (
  | { readonly state: "ready"; readonly how: "port" | "output" }
  /**
   * `said`: whether the run has already written the text that makes it ready. If so, the run need not write the text
   * again.
   */
  | { readonly state: "unready"; readonly cause: Cause; readonly said?: boolean }
);

/**
 * One firing of an alert. It includes the thresholds that applied then, because they may change with a restart of the
 * server.
 */
export interface AlertRecord {
  readonly id: AlertId;
  readonly key: string;
  readonly kind: AlertKind;
  readonly severity: Severity;
  readonly sandboxId: SandboxId | null;
  readonly message: string;
  readonly unit: AlertUnit;
  readonly value: number;
  readonly threshold: number;
  readonly clearBelow: number;
  readonly target: number | null;
  readonly firedAt: number;
  /** When the alert cleared; null while it fires. */
  readonly clearedAt: number | null;
}

/**
 * A message for the webhook: an alert fired or cleared. The message is stored in the same commit as the alert's change.
 */
export interface DeliveryRecord {
  readonly id: DeliveryId;
  readonly state: DeliveryState;
  /** The alert as it was when the message was stored. */
  readonly alert: AlertRecord;
  /** Number of attempts since the delivery was created or last retried by a caller. */
  readonly attempts: number;
  readonly createdAt: number;
  /** When the next attempt is due; null unless the delivery is pending. */
  readonly nextAttemptAt: number | null;
  readonly deliveredAt: number | null;
  readonly lastError: string | null;
}
