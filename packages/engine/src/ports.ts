/**
 * What the engine needs of the world. It knows nothing else: time, ids, the database, whatever runs instances and the
 * link into them all come through here, so that the same engine runs on a machine and in the simulator.
 */

import type { Duplex } from "node:stream";
import type {
  Alert,
  AlertId,
  AttemptId,
  Cause,
  CheckpointId,
  Counter,
  DeliveryId,
  DeliveryState,
  Dispatched,
  DriveId,
  Environment,
  EventType,
  ExecId,
  FileChange,
  FileKind,
  Image,
  InstallationId,
  Labels,
  PreviewId,
  ProcessId,
  ProcessUsage,
  Resources,
  SandboxId,
  StandbyKind,
  TerminalSize,
  TokenId,
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

export interface Clock {
  /** Milliseconds since the epoch. */
  now(): number;
  /** Calls `then` in `ms`, unless what it returned is called before. */
  after(ms: number, then: () => void): () => void;
  /** Resolves after `ms`; rejects with the signal's reason when it is aborted first. */
  sleep(ms: number, signal?: AbortSignal): Promise<void>;
  /** Aborts `ms` from now; `clear` lets the timer go. */
  deadline(ms: number, why: string): { signal: AbortSignal; clear(): void };
}

export interface Ids {
  sandbox(): SandboxId;
  exec(): ExecId;
  attempt(): AttemptId;
  checkpoint(): CheckpointId;
  drive(): DriveId;
  alert(): AlertId;
  delivery(): DeliveryId;
  preview(): PreviewId;
  token(): TokenId;
  process(): ProcessId;
  /** A made-up name for a sandbox or drive whose creator gave none. */
  name(): string;
  /** Uniform in [0, 1), for jitter. */
  random(): number;
}

type Fields = Record<string, unknown>;
export interface Log {
  debug(fields: Fields, message: string): void;
  info(fields: Fields, message: string): void;
  warn(fields: Fields, message: string): void;
  error(fields: Fields, message: string): void;
  child(fields: Fields): Log;
}

// ── Store ────────────────────────────────────────────────────────────────────────────────────────────────────────

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

// ── Driver ───────────────────────────────────────────────────────────────────────────────────────────────────────

/** Where one instance physically is. A pid counts only with its start time and within its boot of the host. */
export interface Instance {
  sandboxId: SandboxId;
  generation: number;
  pid: number;
  startTime: string;
  hostBootId: string;
  /** Version of the keeper binary that runs in it. */
  keeperVersion: string;
  /** What its keeper called itself before any command had run: whoever answers with another name is an impostor. */
  keeperBootId?: string;
}

export interface LaunchOrder {
  sandboxId: SandboxId;
  name: string;
  generation: number;
  image: string;
  resources: Resources;
  /** The files of an earlier instance are there and are to be used again. */
  restart: boolean;
  /** It begins with a copy of what was kept there, and not from its image. */
  fork?: ForkSource | undefined;
  /** What memory that is brought back finds at its mounts. Other mounts are made by `mount`, once it runs. */
  mounts?: readonly MountPoint[];
  /** Called at each step that is begun: `files`, `root`, `runtime`, `keeper`; of a fork `checkpoint`, `files`, `root`, `memory`. */
  onStep?: (step: string) => void;
}

/** What a fork is made of. The instance has the memory that was kept, under its own name and generation. */
export interface ForkSource {
  sandboxId: SandboxId;
  id: CheckpointId;
  kind: StandbyKind;
  /** Of the instance that was kept. */
  generation: number;
}

export interface Capacity {
  cpus: number;
  memoryTotalBytes: number;
  memoryFreeBytes: number;
  diskTotalBytes: number;
  diskFreeBytes: number;
}

export interface Identity {
  dev: string;
  ino: string;
}

/** Where a part of a drive is, or is to be, in a sandbox. */
export interface MountPoint {
  driveId: DriveId;
  path: string;
  /** `/` for all of it. */
  subpath: string;
  readOnly: boolean;
}

export interface MountOrder extends MountPoint {
  sandboxId: SandboxId;
  /** Whether the part of the drive is made where it is missing: by who asks for it, and by nobody who only has it again. */
  make: boolean;
}

/** Why a drive can't be mounted. Nothing is mounted then, and nothing can be written at the path by whoever expects the drive there. */
export class MountRefused extends Error {
  readonly code: "mount_refused" | "mount_conflict" | "drive_gone";
  constructor(code: MountRefused["code"], message: string) {
    super(message);
    this.name = "MountRefused";
    this.code = code;
  }
}

/** A mount of a living instance, seen from outside. */
export interface MountSeen extends MountPoint {
  /** Of the directory of the drive that belongs there; null where there is none. */
  outside: Identity | null;
  /** What keeps it from being served, with codes such as `drive_gone`, `mount_gone`; null where nothing does. */
  problem: Cause | null;
}

/** What was seen of a drive. `unknown` is never taken for `absent`. */
export type DriveObservation =
  | { seen: "present"; at: number; problem: Cause | null }
  | { seen: "absent"; at: number; leftovers: string[] }
  | { seen: "unknown"; at: number; why: string };

/** What a driver saw. `unknown` is never taken for `absent`. */
export type Observation =
  | {
      seen: "present";
      at: number;
      /** Of PID 1. A different start time than the lease's is a different process. */
      pid: number;
      startTime: string;
      state: "running" | "stopped" | "frozen";
      /** Device and inode of the root as the host sees it; null where it is not mounted. */
      root: Identity | null;
      oomKills: number;
      /** Every mount of a drive that was made, and not taken back. One that is only on its way is not among them. */
      mounts: MountSeen[];
      /** Each names something that keeps this instance from serving, with codes such as `root_unmounted`, `keeper_stopped`. */
      problems: Cause[];
    }
  | { seen: "absent"; at: number; leftovers: string[] }
  | { seen: "unknown"; at: number; why: string };

/** What the kernel has counted for an instance since it began, and what it holds now. */
export interface Usage {
  at: number;
  cpuMs: number;
  throttledMs: number;
  /** Of its processes and memory file systems; caches aside. */
  memoryBytes: number;
  /** Processes and threads, and forks that their limit refused. */
  processes: number;
  pidsRefused: number;
  /** What reached a disk. */
  readBytes: number;
  writtenBytes: number;
  ioOperations: number;
  /** Of its own file system; null where it has none. */
  disk: { usedBytes: number; limitBytes: number } | null;
}

/** One process of an instance, seen from the host: names and command lines are its own words, and hostile. */
export interface ProcessSeen extends ProcessUsage {
  /** With the pid it names one process of this boot. */
  startTime: string;
  /** Pages that it was given so far: one that computes on new memory gets more of them. */
  faults: number;
  /** Calls that read or wrote so far; null where that is hidden. */
  calls: number | null;
}

export interface Look {
  at: number;
  processes: ProcessSeen[];
  truncated: boolean;
}

/** An instance's memory on disk: whole, verified, and made for this sandbox alone. */
export interface Checkpoint {
  id: CheckpointId;
  takenAt: number;
  /** Of the instance whose memory it is. */
  generation: number;
  sizeBytes: number;
}

export interface CheckpointOrder {
  sandboxId: SandboxId;
  generation: number;
  id: CheckpointId;
}

export interface SaveOrder extends CheckpointOrder {
  kind: StandbyKind;
  /** No other journals are kept. */
  journals: readonly ExecId[];
  /** It must not take more than this on disk. */
  maxBytes: number;
}

export interface RestoreOrder {
  sandboxId: SandboxId;
  name: string;
  /** Of the instance that comes out of it. */
  generation: number;
  checkpoint: Checkpoint;
  image: string;
  resources: Resources;
  /** What is found at the mounts that it had. One whose drive is not there is empty, and for reading only. */
  mounts?: readonly MountPoint[];
  /** Called at each step that is begun: `checkpoint`, `root`, `restore`. */
  onStep?: (step: string) => void;
}

/** The checkpoint can't be used, which was found out before anything was started from it. Trying again won't help. */
export class CheckpointUnusable extends Error {
  readonly code: "checkpoint_missing" | "checkpoint_damaged" | "checkpoint_foreign";
  constructor(code: CheckpointUnusable["code"], message: string) {
    super(message);
    this.name = "CheckpointUnusable";
    this.code = code;
  }
}

/** Something physical that carries our marker. */
export interface Found {
  sandboxId: SandboxId;
  /** Names for people: "process 4711", "cgroup memory", "mount", "loop device", "directory". */
  things: string[];
  /** Whether processes are among them. */
  alive: boolean;
}

export interface Driver {
  readonly name: string;
  /** Of the host as it runs now: an instance of another boot is gone. */
  readonly hostBootId: string;
  /** Of the keepers that it launches. */
  readonly keeperVersion: string;
  capacity(signal: AbortSignal): Promise<Capacity>;
  /** Starts an instance with its markers. On any failure the caller stops and destroys; launch itself may leave parts. */
  launch(order: LaunchOrder, signal: AbortSignal): Promise<Instance>;
  /** Takes an instance that an earlier server launched under its wing again; null where it is gone. */
  recover(instance: Instance, signal: AbortSignal): Promise<Instance | null>;
  connect(instance: Instance, signal: AbortSignal): Promise<Link>;
  /**
   * Connects to a TCP port of the instance's loopback. Refuses like a keeper: `system` ECONNREFUSED where nothing listens,
   * `system` ETIMEDOUT where what listens takes nobody, `limit`. The stream ends with the signal, and is cut by
   * `checkpoint` and by a `save` of memory, which no connection outlives.
   */
  dial(instance: Instance, port: number, signal: AbortSignal): Promise<PortStream>;
  /** One cheap pass over all the given ones. Never wakes and never touches what runs inside. */
  observe(ids: readonly SandboxId[], signal: AbortSignal): Promise<Map<SandboxId, Observation>>;
  list(signal: AbortSignal): Promise<Found[]>;
  /** One cheap pass over the counters of all the given ones, as `observe`. Those that have none are left out. */
  measure(ids: readonly SandboxId[], signal: AbortSignal): Promise<Map<SandboxId, Usage>>;
  /** Its processes and what they wait for, seen from outside, also of one that is frozen or does not answer. Bounded. */
  inspect(id: SandboxId, signal: AbortSignal): Promise<Look>;
  /** Puts root and disk of a living instance back where the host sees them. Nothing inside notices. */
  remount(id: SandboxId, signal: AbortSignal): Promise<void>;
  /** Bytes that the processes of each have written to disk so far, as far as that can be told. */
  written(ids: readonly SandboxId[], signal: AbortSignal): Promise<Map<SandboxId, number>>;
  /** What standby keeps of an instance on this host; why, where that is not its memory. */
  readonly standby: { kind: StandbyKind; why: string | null };
  freeze(id: SandboxId, signal: AbortSignal): Promise<void>;
  /** Lets its processes run: thawed, and the keeper continued where a signal had stopped it. */
  thaw(id: SandboxId, signal: AbortSignal): Promise<void>;
  /** Roughly what a checkpoint of it would take on disk now. */
  memoryBytes(id: SandboxId, signal: AbortSignal): Promise<number>;
  /**
   * Writes the memory of an instance to disk. The caller has frozen it and closed its link; it stays frozen and unharmed
   * whatever becomes of this. Resolves when the checkpoint is whole, durable and verified, with the files that it goes
   * with. Where it fails or is broken off, nothing counts as a checkpoint.
   */
  checkpoint(order: CheckpointOrder, signal: AbortSignal): Promise<Checkpoint>;
  /**
   * Makes an instance of a checkpoint, and leaves it frozen: none of its processes has run when this resolves. The caller
   * has observed that nothing of the sandbox runs. On any failure the caller stops; restore itself may leave parts.
   */
  restore(order: RestoreOrder, signal: AbortSignal): Promise<Instance>;
  /** Removes every checkpoint of the sandbox, whole or not, but the one to keep. Idempotent. */
  discard(id: SandboxId, keep: CheckpointId | null, signal: AbortSignal): Promise<void>;
  /**
   * Copies the files of an instance, and its memory where that is asked for, into a checkpoint that `discard` leaves alone.
   * The caller has frozen it and closed its link; it stays frozen and unharmed whatever becomes of this. Resolves when all
   * of it is whole and durable. Where it fails or is broken off, nothing counts as a checkpoint.
   */
  save(order: SaveOrder, signal: AbortSignal): Promise<{ sizeBytes: number; memoryBytes: number }>;
  /** Removes every saved checkpoint of the sandbox, whole or not, but those to keep. Idempotent. */
  unsave(id: SandboxId, keep: readonly CheckpointId[], signal: AbortSignal): Promise<void>;
  /**
   * Files of a sandbox that has no instance, as its own uid 0 would see them. Paths on what only an instance has (/proc,
   * /dev, and what else is not on its disk) are refused as `not_on_disk`. To be closed after use.
   */
  files(id: SandboxId, signal: AbortSignal): Promise<{ files: FileAccess; close(): Promise<void> }>;
  /**
   * Mounts a part of a drive in a living instance, from outside. Resolves when the same directory is seen there from inside
   * and outside. The same one again is fine. Refuses with `MountRefused`; then, and where it is broken off, `unmount` is owed.
   */
  mount(order: MountOrder, signal: AbortSignal): Promise<void>;
  /**
   * Takes off what was mounted there, in a living instance or not. Idempotent; resolves when it is seen to be gone. The
   * directory under it is given back, or stays closed to every writer where the sandbox still expects the drive there.
   */
  unmount(id: SandboxId, path: string, options: { keepClosed: boolean }, signal: AbortSignal): Promise<void>;
  /** Ends every process of the instance, frozen or not, and says what it then saw. Idempotent. */
  stop(id: SandboxId, options: { graceMs: number }, signal: AbortSignal): Promise<Observation>;
  /** Removes all else: mounts, cgroups, runtime state, files. Resolves only when nothing is left. Idempotent. */
  destroy(id: SandboxId, signal: AbortSignal): Promise<void>;
  close(): Promise<void>;
}

/**
 * A connection to a port. Its bytes are a Duplex and not a pair of iterables, as bodies of files are, because both ways
 * share one life: each ends by itself, either can hold the other up, and a failure is of both. It is also what everything
 * that speaks a protocol over bytes expects. A Duplex is of Node's streams and knows no network.
 */
export interface PortStream {
  /** What the keeper that connected calls itself: one that is not the link's is an impostor, and was told nothing yet. */
  readonly bootId: string;
  /** Fails with `StreamCut` where it ends before its end. Who lets go of it destroys it. */
  readonly bytes: Duplex;
}

/** The directories that drives are, wherever this driver keeps them. */
export interface Drives {
  /** Makes its directory, durably. One that is there is fine, and is left as it is. */
  make(order: { id: DriveId; sizeMb: number | null }, signal: AbortSignal): Promise<void>;
  /** Has it where it belongs, such as after the host was restarted. Makes nothing: what is missing stays so. */
  open(id: DriveId, signal: AbortSignal): Promise<void>;
  /** One cheap look at all the given ones. */
  observe(ids: readonly DriveId[], signal: AbortSignal): Promise<Map<DriveId, DriveObservation>>;
  /** What its files take, and what there is room for. */
  usage(id: DriveId, signal: AbortSignal): Promise<{ usedBytes: number; freeBytes: number }>;
  /** Its files, as uid 0 of a sandbox would see them. To be closed after use. */
  files(id: DriveId, signal: AbortSignal): Promise<{ files: FileAccess; close(): Promise<void> }>;
  /** Removes all of it. Resolves only when nothing is left. Idempotent. */
  destroy(id: DriveId, signal: AbortSignal): Promise<void>;
  /** Every drive that is there, whether or not anyone knows of it. */
  list(signal: AbortSignal): Promise<DriveId[]>;
}

/** What a journal on disk tells of how its exec ended. */
export interface JournalEnd {
  /** From the exit record; null where none was written, because the keeper died first or the exec still runs. */
  exec: KeeperExec | null;
  /** Where the output ends: the exit record's offset or, without one, that of the end of the last whole record. */
  end: number;
}

/**
 * Journals as files, read from outside the sandbox: of execs that its keeper no longer has in memory, and of sandboxes that
 * have no keeper any more. A sandbox's root could have written anything there: what is read is hostile.
 */
export interface Journals {
  /** Whole records from a cursor on; null where there is no journal. Refuses like a keeper: below_floor, bad_cursor. */
  read(
    sandboxId: SandboxId,
    id: ExecId,
    from: { cursor: number; maxBytes: number },
    signal: AbortSignal,
  ): Promise<JournalSlice | null>;
  /** Null where there is no journal. */
  end(sandboxId: SandboxId, id: ExecId, signal: AbortSignal): Promise<JournalEnd | null>;
  /** Takes the journals of a stopped sandbox out of what `destroy` removes. Idempotent. */
  keep(sandboxId: SandboxId, signal: AbortSignal): Promise<void>;
  /** Removes journals, kept or not. Those that aren't there are fine; a directory that was kept goes with its last one. */
  remove(sandboxId: SandboxId, ids: readonly ExecId[], signal: AbortSignal): Promise<void>;
  /** Sandboxes of which journals are kept. */
  kept(signal: AbortSignal): Promise<SandboxId[]>;
  /** Removes all that was kept of one sandbox. */
  drop(sandboxId: SandboxId, signal: AbortSignal): Promise<void>;
}

export interface ImportSource {
  /** A tar archive, as a stream of bytes. */
  tar: AsyncIterable<Uint8Array>;
}

export interface Images {
  list(): Promise<Image[]>;
  get(name: string): Promise<Image | null>;
  import(name: string, source: ImportSource, signal: AbortSignal): Promise<Image>;
  remove(name: string, signal: AbortSignal): Promise<void>;
}

// ── Link ─────────────────────────────────────────────────────────────────────────────────────────────────────────

/** The keeper said no. `errno` is a name such as ENOENT where the kernel said so. */
export class KeeperRefusal extends Error {
  readonly reason:
    | "malformed"
    | "too_large"
    | "unknown_type"
    | "stale_generation"
    | "not_greeted"
    | "wrong_identity"
    | "no_such_exec"
    | "exec_conflict"
    | "exec_running"
    | "limit"
    | "system"
    | "bad_handle"
    | "below_floor"
    | "bad_cursor"
    | "not_regular"
    | "reserved_path"
    | "not_on_disk";
  readonly errno: string | null;
  /** The lowest readable cursor, with `below_floor`. */
  readonly floor: number | null;
  constructor(
    reason: KeeperRefusal["reason"],
    message: string,
    errno: string | null = null,
    floor: number | null = null,
  ) {
    super(message);
    this.name = "KeeperRefusal";
    this.reason = reason;
    this.errno = errno;
    this.floor = floor;
  }
}

/**
 * A stream to a port ended before both of its directions had: whoever was at the port reset it or is gone, or the sandbox
 * was stopped, put to sleep or taken over by a later generation. What was read of it is not all.
 */
export class StreamCut extends Error {
  /** What a socket says in the same case. */
  readonly code = "ECONNRESET";
  constructor(why: string) {
    super(why);
    this.name = "StreamCut";
  }
}

/** The link ended before the answer came. The request may have been carried out. */
export class LinkLost extends Error {
  readonly dispatched: Dispatched;
  constructor(why: string, dispatched: Dispatched) {
    super(why);
    this.name = "LinkLost";
    this.dispatched = dispatched;
  }
}

export interface ExecOrder {
  id: ExecId;
  argv: readonly string[];
  env: Environment;
  cwd: string;
  /** Empty for the default user; a name from the image's passwd, or `uid[:gid]`. */
  user: string;
  /** 0: none. */
  timeoutMs: number;
  /** Whether stdin will be written to; otherwise it is /dev/null. */
  stdin: boolean;
  /** Null: pipes. */
  tty: TerminalSize | null;
  journalCapBytes: number;
  /** SHA-256 of everything above, hex: tells a repeated start from a conflicting one. */
  digest: string;
}

/** An exec as the keeper knows it. */
export interface KeeperExec {
  id: ExecId;
  state: "running" | "exited" | "timed_out" | "cancelled";
  pid: number;
  /** -1 where it ended by a signal. */
  exitCode: number;
  /** 0 where it exited. */
  signal: number;
  /** Why the command could not be run at all: `cwd`, `user`, `not_found`, `not_executable`; empty otherwise. */
  failure: string;
  startedAt: number;
  endedAt: number;
  /** Cursors: first readable byte; end of the journal so far or, once ended, of the output up to the end. */
  journalFloor: number;
  journalEnd: number;
  digest: string;
}

/**
 * How a keeper starts a command again by itself. After a run that ended, and was not cancelled: with `failure` an exit with 0
 * is the end of it; otherwise the next run begins after `backoffMs`, doubled with every restart in a row up to a minute, in
 * lived time. A run that lasted a minute begins the row anew. After `max` restarts in a row it is given up.
 */
export interface KeepPolicy {
  on: "failure" | "always";
  max: number;
  backoffMs: number;
}

/**
 * A row of runs as the keeper knows it. Each run is an exec of its own, with an outcome and a journal; its id is that of the
 * first with the number at its end, behind the last hyphen, counted up.
 */
export interface KeptRun {
  /** Of the last run. */
  execId: ExecId;
  /** `waiting` for the next run; `done` by its policy; `stopped` by a cancel; `given_up` after too many restarts. */
  state: "running" | "waiting" | "done" | "stopped" | "given_up";
  /** In a row. */
  restarts: number;
  /** When the next run is due, where it waits. */
  nextAt: number | null;
}

export interface JournalRecord {
  stream: "stdout" | "stderr";
  at: number;
  /** The cursor behind this record. */
  cursor: number;
  data: Uint8Array;
}

export interface JournalSlice {
  records: JournalRecord[];
  /** Where to read on. */
  next: number;
  floor: number;
  end: number;
  /** False once the exec has ended and `next` is the end of what it wrote. */
  more: boolean;
  /** For who is done with all of the records' data, and only for them: its memory is used again. */
  release?(): void;
}

export interface Probe {
  root: Identity;
  livedMs: number;
  processes: number;
}

export interface ProcessInfo {
  pid: number;
  parent: number;
  uid: number;
  state: string;
  cpuMs: number;
  rssBytes: number;
  name: string;
  commandLine: string;
  execId: string;
}

export interface Stat {
  kind: FileKind;
  sizeBytes: number;
  mode: number;
  uid: number;
  gid: number;
  modifiedAt: number;
  dev: string;
  ino: string;
  /** Of a symbolic link, else empty. */
  target: string;
}

export interface WriteOptions {
  mode?: number;
  /** Make missing parent directories. */
  parents?: boolean;
  uid?: number;
  gid?: number;
}

/** Files of one root. Served by the keeper from inside or by the porter from a jail: the same protocol. */
export interface FileAccess {
  stat(path: string, options: { follow: boolean }, signal: AbortSignal): Promise<Stat>;
  list(
    path: string,
    options: { limit: number },
    signal: AbortSignal,
  ): Promise<{ entries: { name: string; stat: Stat }[]; truncated: boolean }>;
  /** The stat is of the very file that is read. The body must be iterated to its end or returned. */
  read(
    path: string,
    range: { offset: number; length: number | null },
    signal: AbortSignal,
  ): Promise<{ stat: Stat; body: AsyncIterable<Uint8Array> }>;
  /** Atomic: readers see the old content or the new. Nothing is left where the body fails. */
  write(
    path: string,
    body: AsyncIterable<Uint8Array>,
    options: WriteOptions,
    signal: AbortSignal,
  ): Promise<Stat>;
  mkdir(path: string, options: WriteOptions, signal: AbortSignal): Promise<void>;
  remove(path: string, options: { recursive: boolean }, signal: AbortSignal): Promise<void>;
  rename(from: string, to: string, options: { overwrite: boolean }, signal: AbortSignal): Promise<void>;
  chmod(path: string, mode: number, signal: AbortSignal): Promise<void>;
  /** Refuses where something is there. */
  symlink(path: string, target: string, options: WriteOptions, signal: AbortSignal): Promise<void>;
  /** Sets when it was last modified; of a symbolic link its own. */
  touch(path: string, modifiedAt: number, signal: AbortSignal): Promise<void>;
  /**
   * Resolves when no change is missed any more, of the directory or file and, where that is asked for, of all below it.
   * Ends with the signal, or with the link. Must be iterated or returned.
   */
  watch(
    path: string,
    options: { recursive: boolean },
    signal: AbortSignal,
  ): Promise<AsyncIterable<FileChange>>;
}

/** A byte stream to one keeper. Losing it loses nothing: everything it was used for can be asked again on the next one. */
export interface Link {
  readonly keeper: { version: string; bootId: string; startedAt: number };
  /** Resolves once, with why, when the link is over. Never rejects. */
  readonly closed: Promise<string>;
  /** When the last frame came in. */
  readonly lastHeardAt: number;
  readonly files: FileAccess;
  ping(signal: AbortSignal): Promise<void>;
  startExec(order: ExecOrder, signal: AbortSignal): Promise<{ existed: boolean; exec: KeeperExec }>;
  /** Waits up to `waitMs` for something to read. */
  readExec(
    id: ExecId,
    from: { cursor: number; maxBytes: number; waitMs: number },
    signal: AbortSignal,
  ): Promise<JournalSlice>;
  /** Exactly once by offset; `accepted` is how far stdin has got. */
  writeStdin(
    id: ExecId,
    chunk: { offset: number; data: Uint8Array; end: boolean },
    signal: AbortSignal,
  ): Promise<{ accepted: number }>;
  signalExec(id: ExecId, signal: number, abort: AbortSignal): Promise<void>;
  /** Kills the whole tree; the exec then ends as cancelled. */
  cancelExec(id: ExecId, signal: AbortSignal): Promise<void>;
  listExecs(signal: AbortSignal): Promise<KeeperExec[]>;
  /** Drops an ended exec; its journal too, unless that is to be kept for reading from outside. */
  forgetExec(id: ExecId, options: { keepJournal: boolean }, signal: AbortSignal): Promise<void>;
  /** Of an exec that has a terminal. */
  resizeExec(id: ExecId, size: TerminalSize, signal: AbortSignal): Promise<void>;
  /** Called for every exec that ends while the link is up. */
  onExecEnd(listener: (exec: KeeperExec) => void): void;
  /**
   * As `startExec`, and has the command started again when it ends. The id must end with a hyphen and a number. A cancel of the
   * last run ends the row as well, also while it waits. A keeper that can't refuses with `unknown_type`.
   */
  keepExec(
    order: ExecOrder,
    policy: KeepPolicy,
    signal: AbortSignal,
  ): Promise<{ existed: boolean; exec: KeeperExec }>;
  /** The rows that it has, those that are over included until their last run is forgotten. */
  listKept(signal: AbortSignal): Promise<KeptRun[]>;
  /** Called for every run that the keeper begins by itself while the link is up. */
  onExecStart(listener: (exec: KeeperExec) => void): void;
  probe(signal: AbortSignal): Promise<Probe>;
  processes(signal: AbortSignal): Promise<ProcessInfo[]>;
  close(): void;
}

/** Where messages about alerts go. */
export interface Notifier {
  /**
   * Resolves when it was taken, and rejects with why not, in words without secrets. The same id may come again: a server that
   * dies after it was taken does not know that.
   */
  deliver(message: AlertMessage, signal: AbortSignal): Promise<void>;
}

export interface AlertMessage {
  id: DeliveryId;
  createdAt: number;
  alert: Alert;
}

export interface Ports {
  installation: InstallationId;
  clock: Clock;
  ids: Ids;
  log: Log;
  store: Store;
  driver: Driver;
  drives: Drives;
  images: Images;
  journals: Journals;
  /** Null where nobody is to be told. */
  notifier: Notifier | null;
}
