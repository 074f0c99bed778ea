/** The store port: the database as the engine needs it, with its records and the changes to them. */
import type {
  Alert,
  AlertId,
  CheckpointId,
  Counter,
  DeliveryId,
  DeliveryState,
  DriveId,
  EventType,
  ExecId,
  Labels,
  PreviewId,
  ProcessId,
  SandboxId,
} from "@holdfast/contract";
import type {
  AlertRecord,
  CheckpointSummary,
  DeliveryRecord,
  DriveRecord,
  ExecRecord,
  PreviewRecord,
  ProcessRecord,
  SandboxRecord,
  SavedCheckpoint,
} from "./records.ts";

export interface NewEvent {
  at: number;
  type: EventType;
  sandboxId?: SandboxId | undefined;
  execId?: ExecId | undefined;
  driveId?: DriveId | undefined;
  generation?: number | undefined;
  message: string;
  data?: Record<string, unknown>;
}

export interface StoredEvent {
  seq: number;
  at: number;
  type: EventType;
  sandboxId: SandboxId | null;
  execId: ExecId | null;
  driveId: DriveId | null;
  generation: number | null;
  message: string;
  data: Record<string, unknown>;
}

export interface Idempotency {
  /**
   * The scope of the idempotency key: `sandbox` or `exec:<sandbox id>`. The same key may be used once in each scope.
   */
  scope: string;
  key: string;
  /** Hash of the request's content. The same key with a different fingerprint is a conflict. */
  fingerprint: string;
}

export type Change =
  | { kind: "sandbox.insert"; record: SandboxRecord; idempotency?: Idempotency | undefined }
  /** Updates the record, if the stored revision is `expectedRevision`. The new revision is `record.revision`. */
  | { kind: "sandbox.update"; record: SandboxRecord; expectedRevision: number }
  /** Updates the time of the last activity and the exec count. Both only grow: a smaller value changes nothing. */
  | { kind: "sandbox.touch"; id: SandboxId; at: number; execsStarted: number }
  /**
   * Marks an unreadable record as gone and frees its name. Allowed only after the sandbox was observed to be absent.
   */
  | { kind: "sandbox.scrap"; id: SandboxId; at: number }
  | {
      kind: "exec.insert";
      record: ExecRecord;
      idempotency?: Idempotency | undefined;
      /** The number of execs started so far, including this one. Set only if the sandbox has an exec limit. */
      execsStarted?: number | undefined;
    }
  /** Stores the end of an exec, unless the stored record already has an end. */
  | { kind: "exec.end"; record: ExecRecord }
  /** Removes ended execs past their retention, and their idempotency keys. Unknown ids are ignored. */
  | { kind: "exec.forget"; ids: readonly ExecId[] }
  /**
   * Inserts the process. If the sandbox already has a process of this name, replaces that process. When a sandbox
   * becomes gone, its processes are removed.
   */
  | { kind: "process.insert"; record: ProcessRecord }
  /** Updates the process, if the stored revision is `expectedRevision`. */
  | { kind: "process.update"; record: ProcessRecord; expectedRevision: number }
  /** Removes the process. Does nothing if it does not exist. */
  | { kind: "process.remove"; id: ProcessId }
  | { kind: "checkpoint.insert"; record: SavedCheckpoint }
  /**
   * Removes the checkpoint. Does nothing if it does not exist. When a sandbox becomes gone, its checkpoints are removed
   * too.
   */
  | { kind: "checkpoint.remove"; id: CheckpointId }
  | { kind: "drive.insert"; record: DriveRecord }
  /** Updates the drive, if the stored revision is `expectedRevision`. */
  | { kind: "drive.update"; record: DriveRecord; expectedRevision: number }
  /**
   * Removes the drive's record. Allowed only after the drive was observed to be absent. Does nothing if the record does
   * not exist.
   */
  | { kind: "drive.remove"; id: DriveId }
  /** Inserts or replaces the preview with this id. */
  | { kind: "preview.put"; record: PreviewRecord }
  /**
   * Removes the preview. Does nothing if it does not exist. When a sandbox becomes gone, its previews are removed too.
   */
  | { kind: "preview.remove"; id: PreviewId }
  | { kind: "alert.fire"; record: AlertRecord }
  /** Stores the alert as cleared, if the stored alert still fires. */
  | { kind: "alert.clear"; record: AlertRecord }
  | { kind: "delivery.insert"; record: DeliveryRecord }
  | { kind: "delivery.update"; record: DeliveryRecord }
  /**
   * Removes events, idempotency keys, records of gone sandboxes, cleared alerts and finished deliveries that are older
   * than the given times; at most `limit` of each kind.
   */
  | {
      kind: "prune";
      eventsBefore: number;
      keysBefore: number;
      goneBefore: number;
      alertsBefore: number;
      deliveriesBefore: number;
      limit: number;
    };

export interface Commit {
  changes: readonly Change[];
  events?: readonly NewEvent[];
  counters?: Partial<Record<Counter, number>>;
  /**
   * What a resolved commit must survive: a crash of the host (`host`, the default), or only a crash of this server
   * (`server`). A commit with `server` can be lost if the power fails shortly afterwards. The next commit with `host`
   * makes it durable too.
   */
  outlives?: "host" | "server";
}

/** The precondition of a change was not met. Nothing of the commit was written. */
export class StoreConflict extends Error {
  readonly reason:
    | "name_taken"
    | "exec_exists"
    | "checkpoint_exists"
    | "preview_exists"
    | "drive_exists"
    | "stale_revision"
    | "already_terminal"
    | "idempotency_key_used";
  constructor(reason: StoreConflict["reason"]) {
    super(`store conflict: ${reason}`);
    this.name = "StoreConflict";
    this.reason = reason;
  }
}

export interface SandboxFilter {
  /** Whether to include sandboxes that are gone. */
  includeGone?: boolean;
  labels?: Labels | undefined;
  /** Only sandboxes created after the one with this id. */
  after?: SandboxId | undefined;
  limit: number;
}

export interface EventFilter {
  sandboxId?: SandboxId | undefined;
  execId?: ExecId | undefined;
  driveId?: DriveId | undefined;
  types?: readonly EventType[] | undefined;
  /** The time range: `since` is inclusive, `until` exclusive. */
  since?: number | undefined;
  until?: number | undefined;
  /** Only events that come after this seq in the given order. */
  after?: number | undefined;
  /** Default: oldest first. */
  order?: EventOrder | undefined;
  limit: number;
}

export type EventOrder = "oldest" | "newest";

export interface DeliveryFilter {
  state?: DeliveryState | undefined;
  alertId?: AlertId | undefined;
  before?: DeliveryId | undefined;
  limit: number;
}

/** How many execs of one sandbox ended within one interval. */
export interface EndedExecs {
  /** Start of the step. */
  at: number;
  sandboxId: SandboxId;
  ended: number;
  timedOut: number;
}

export interface Store {
  /** Commits the changes atomically: either all of them are written or none. Resolves once they are written. */
  commit(commit: Commit): Promise<void>;

  sandbox(id: SandboxId): Promise<SandboxRecord | null>;
  /** Returns the sandbox that currently holds the name. */
  sandboxByName(name: string): Promise<SandboxRecord | null>;
  sandboxes(filter: SandboxFilter): Promise<SandboxRecord[]>;
  /** Returns the records of all sandboxes that are not gone. A starting engine examines all of them. */
  liveSandboxes(): Promise<SandboxRecord[]>;

  exec(id: ExecId): Promise<ExecRecord | null>;
  /**
   * Lists execs older than `before`, newest first: those of the whole sandbox or, with `of`, only the runs of that
   * process.
   */
  execs(
    sandboxId: SandboxId,
    page: { of?: ProcessId | undefined; before?: ExecId | undefined; limit: number },
  ): Promise<ExecRecord[]>;
  /** Returns all execs that have no outcome yet. */
  openExecs(): Promise<ExecRecord[]>;
  /**
   * Returns execs that ended before the given time, in order of their end, except those of the sandboxes in `exceptOf`.
   */
  endedExecs(filter: {
    endedBefore: number;
    exceptOf: readonly SandboxId[];
    limit: number;
  }): Promise<{ id: ExecId; sandboxId: SandboxId; outputEnd: number }[]>;
  /** Returns the ended execs of one sandbox that are still on record, in order of their end. */
  retainedExecs(sandboxId: SandboxId): Promise<{ id: ExecId; outputEnd: number }[]>;

  /** Returns all processes of sandboxes that are not gone, oldest first. */
  processes(): Promise<ProcessRecord[]>;

  checkpoint(id: CheckpointId): Promise<SavedCheckpoint | null>;
  /** Oldest first. */
  checkpoints(sandboxId: SandboxId): Promise<CheckpointSummary[]>;
  /**
   * Returns the ids of the sandbox's checkpoints. Unreadable records are included, so that the files of their
   * checkpoints are not removed.
   */
  checkpointIds(sandboxId: SandboxId): Promise<CheckpointId[]>;

  /** Counts execs that ended since the given time, in intervals of `stepMs`, oldest first. */
  execEnds(since: number, stepMs: number): Promise<EndedExecs[]>;

  /** Returns the firing alerts, or the last ones that have cleared; newest first. */
  alerts(filter: { state: Alert["state"]; limit: number }): Promise<AlertRecord[]>;
  delivery(id: DeliveryId): Promise<DeliveryRecord | null>;
  /** Lists deliveries older than `before`, newest first. */
  deliveries(filter: DeliveryFilter): Promise<DeliveryRecord[]>;
  deliveryCounts(): Promise<Record<DeliveryState, number>>;

  /** Returns all previews of live sandboxes, oldest first. */
  previews(): Promise<PreviewRecord[]>;
  /** The secret key with which this installation signs tokens. It is created together with the database. */
  readonly secret: string;

  /** Returns all drives, oldest first. */
  drives(): Promise<DriveRecord[]>;
  /** Returns the ids of unreadable drive records. The files of these drives must not be removed. */
  unreadableDrives(): Promise<DriveId[]>;

  /** Returns the result of an earlier request with this idempotency key. */
  idempotent(scope: string, key: string): Promise<{ target: string; fingerprint: string } | null>;

  events(filter: EventFilter): Promise<StoredEvent[]>;
  /**
   * Returns the first and the last stored seq; 0 and 0 if there are no events. The last event is never pruned, so a seq
   * is never reused.
   */
  eventSpan(): Promise<{ first: number; last: number }>;
  /**
   * Counts the rows that a `prune` with the same limits would remove. Counting stops at `limit`: if a count equals
   * `limit`, there may be more rows.
   */
  prunable(order: Omit<Extract<Change, { kind: "prune" }>, "kind">): Promise<{
    events: number;
    keys: number;
    gone: number;
    alerts: number;
    deliveries: number;
  }>;
  /** Returns the ids of unreadable records of live sandboxes. The resources of these sandboxes must not be removed. */
  unreadable(): Promise<SandboxId[]>;
  counters(): Promise<Record<Counter, number>>;
}
