/** Whatever runs instances and keeps their files, as the engine needs it. */
import type { Duplex } from "node:stream";
import type {
  Cause,
  CheckpointId,
  DriveId,
  ExecId,
  Image,
  ProcessUsage,
  Resources,
  SandboxId,
  StandbyKind,
} from "@holdfast/contract";
import type { FileAccess, JournalSlice, KeeperExec, Link } from "./link-port.ts";

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
