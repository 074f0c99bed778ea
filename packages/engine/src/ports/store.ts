/** The database, as the engine needs it: what is kept, and how it is changed. */
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
  /** `sandbox` or `exec:<sandbox id>`: the same key may be used for different kinds of things. */
  scope: string;
  key: string;
  /** Of the request's content; the same key with another one is a conflict. */
  fingerprint: string;
}

export type Change =
  | { kind: "sandbox.insert"; record: SandboxRecord; idempotency?: Idempotency | undefined }
  /** Written only over `expectedRevision`; the stored revision becomes `record.revision`. */
  | { kind: "sandbox.update"; record: SandboxRecord; expectedRevision: number }
  /** Both only ever grow: a smaller figure changes nothing. */
  | { kind: "sandbox.touch"; id: SandboxId; at: number; execsStarted: number }
  /** Makes a record that can't be read a gone one, with its name given back; only after absence was observed. */
  | { kind: "sandbox.scrap"; id: SandboxId; at: number }
  | {
      kind: "exec.insert";
      record: ExecRecord;
      idempotency?: Idempotency | undefined;
      /** Where the sandbox's execs are limited: how many there are now, with this one. */
      execsStarted?: number | undefined;
    }
  /** Written only over a record that is not terminal yet. */
  | { kind: "exec.end"; record: ExecRecord }
  /** Ended execs whose time is over, with what was remembered under their idempotency keys. Unknown ids are fine. */
  | { kind: "exec.forget"; ids: readonly ExecId[] }
  /** Takes the place of the one that has its name in the sandbox. Those of a sandbox go with its becoming gone. */
  | { kind: "process.insert"; record: ProcessRecord }
  /** Written only over `expectedRevision`, like a sandbox. */
  | { kind: "process.update"; record: ProcessRecord; expectedRevision: number }
  /** One that isn't there is fine. */
  | { kind: "process.remove"; id: ProcessId }
  | { kind: "checkpoint.insert"; record: SavedCheckpoint }
  /** One that isn't there is fine. Those of a sandbox go with its becoming gone as well. */
  | { kind: "checkpoint.remove"; id: CheckpointId }
  | { kind: "drive.insert"; record: DriveRecord }
  /** Written only over `expectedRevision`, like a sandbox. */
  | { kind: "drive.update"; record: DriveRecord; expectedRevision: number }
  /** Only after its absence was observed. One that isn't there is fine. */
  | { kind: "drive.remove"; id: DriveId }
  /** Made, or changed: by its id. */
  | { kind: "preview.put"; record: PreviewRecord }
  /** One that isn't there is fine. Those of a sandbox go with its becoming gone as well. */
  | { kind: "preview.remove"; id: PreviewId }
  | { kind: "alert.fire"; record: AlertRecord }
  /** Written only over one that fires. */
  | { kind: "alert.clear"; record: AlertRecord }
  | { kind: "delivery.insert"; record: DeliveryRecord }
  | { kind: "delivery.update"; record: DeliveryRecord }
  /**
   * Events, keys of sandboxes, records of gone sandboxes, alerts that have cleared and deliveries that are not pending, where
   * they are older; at most so many of each.
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
   * What it must outlive when the commit resolves: the host (the default), or only this server, which a kill can't undo
   * but a power cut within the next moments can. The next commit that outlives the host takes it along.
   */
  outlives?: "host" | "server";
}

/** The precondition of a change did not hold; nothing of its commit was written. */
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
  /** Live ones only, or those that are gone too. */
  includeGone?: boolean;
  labels?: Labels | undefined;
  /** Ids after this one, in the order of creation. */
  after?: SandboxId | undefined;
  limit: number;
}

export interface EventFilter {
  sandboxId?: SandboxId | undefined;
  execId?: ExecId | undefined;
  driveId?: DriveId | undefined;
  types?: readonly EventType[] | undefined;
  /** Not before, and before, this time. */
  since?: number | undefined;
  until?: number | undefined;
  /** Events behind this seq, in the given order. */
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

/** Execs of one sandbox that ended within one step of time. */
export interface EndedExecs {
  /** When the step began. */
  at: number;
  sandboxId: SandboxId;
  ended: number;
  timedOut: number;
}

export interface Store {
  /** All of it or nothing, written when it resolves. */
  commit(commit: Commit): Promise<void>;

  sandbox(id: SandboxId): Promise<SandboxRecord | null>;
  /** The one that holds the name now. */
  sandboxByName(name: string): Promise<SandboxRecord | null>;
  sandboxes(filter: SandboxFilter): Promise<SandboxRecord[]>;
  /** Every record that is not gone: what a starting engine has to look at. */
  liveSandboxes(): Promise<SandboxRecord[]>;

  exec(id: ExecId): Promise<ExecRecord | null>;
  /** Newest first, before the given one; all, or the runs of one process. */
  execs(
    sandboxId: SandboxId,
    page: { of?: ProcessId | undefined; before?: ExecId | undefined; limit: number },
  ): Promise<ExecRecord[]>;
  /** Every exec without an outcome. */
  openExecs(): Promise<ExecRecord[]>;
  /** Those that ended before the given time, oldest end first, without those of some sandboxes. */
  endedExecs(filter: {
    endedBefore: number;
    exceptOf: readonly SandboxId[];
    limit: number;
  }): Promise<{ id: ExecId; sandboxId: SandboxId; outputEnd: number }[]>;
  /** What is kept of the ended execs of one sandbox, oldest end first. */
  keptExecs(sandboxId: SandboxId): Promise<{ id: ExecId; outputEnd: number }[]>;

  /** Every process of every sandbox that is not gone, oldest first. */
  processes(): Promise<ProcessRecord[]>;

  checkpoint(id: CheckpointId): Promise<SavedCheckpoint | null>;
  /** Oldest first. */
  checkpoints(sandboxId: SandboxId): Promise<CheckpointSummary[]>;
  /** Also of those that can't be read: what they own is left alone. */
  checkpointIds(sandboxId: SandboxId): Promise<CheckpointId[]>;

  /** Of those that ended since the given time, in steps of so many milliseconds, in the order of time. */
  execEnds(since: number, stepMs: number): Promise<EndedExecs[]>;

  /** Those that fire, or the last that have cleared; newest first. */
  alerts(filter: { state: Alert["state"]; limit: number }): Promise<AlertRecord[]>;
  delivery(id: DeliveryId): Promise<DeliveryRecord | null>;
  /** Newest first, before the given one. */
  deliveries(filter: DeliveryFilter): Promise<DeliveryRecord[]>;
  deliveryCounts(): Promise<Record<DeliveryState, number>>;

  /** Every preview of sandboxes that live, oldest first. */
  previews(): Promise<PreviewRecord[]>;
  /** Made with the database and known to nobody else: what this installation signs with. */
  readonly secret: string;

  /** Every drive, oldest first. */
  drives(): Promise<DriveRecord[]>;
  /** Ids of records of drives that can't be read. What they own is left alone. */
  unreadableDrives(): Promise<DriveId[]>;

  /** What was made under an idempotency key. */
  idempotent(scope: string, key: string): Promise<{ target: string; fingerprint: string } | null>;

  events(filter: EventFilter): Promise<StoredEvent[]>;
  /** The first and the last seq that is kept; 0 and 0 where there is none. The last one is never pruned: a seq is used once. */
  eventSpan(): Promise<{ first: number; last: number }>;
  /** How much a `prune` with these limits would remove: of each kind at most `limit`, with more behind it then. */
  prunable(order: Omit<Extract<Change, { kind: "prune" }>, "kind">): Promise<{
    events: number;
    keys: number;
    gone: number;
    alerts: number;
    deliveries: number;
  }>;
  /** Ids of live records that can't be read. What they own is left alone. */
  unreadable(): Promise<SandboxId[]>;
  counters(): Promise<Record<Counter, number>>;
}
