/**
 * The optional abilities of a driver. A driver declares each ability as an object, or as null if the driver lacks the
 * ability. The engine refuses calls that need a missing ability with `not_supported`.
 */
import type { Duplex } from "node:stream";
import {
  type Cause,
  type CheckpointId,
  type DriveId,
  type ExecId,
  HoldfastError,
  type Image,
  type ProcessUsage,
  type Resources,
  type SandboxId,
  type StandbyKind,
} from "@holdfast/contract";
import type { Driver, Instance, MountPoint } from "./driver.ts";
import type { FileAccess, JournalSlice, KeeperExec } from "./link.ts";

export interface DriverCapabilities {
  readonly freezer: Freezer | null;
  readonly standby: MemoryStandby | null;
  readonly checkpoints: Checkpoints | null;
  readonly drives: DriveSupport | null;
  readonly ports: PortDialing | null;
  readonly journals: JournalsAfterDeath | null;
  readonly outsideView: OutsideView | null;
  readonly offlineFiles: OfflineFiles | null;
  readonly images: ImageStore | null;
}

export type CapabilityName = keyof DriverCapabilities;

const MISSING: Readonly<Record<CapabilityName, string>> = {
  freezer: "pausing sandboxes",
  standby: "memory standby",
  checkpoints: "checkpoints",
  drives: "drives",
  ports: "connections to ports of sandboxes",
  journals: "reading output of sandboxes that do not run",
  outsideView: "measuring sandboxes from outside",
  offlineFiles: "files of sandboxes that do not run",
  images: "importing images",
};

/** Returns the capability. Throws `not_supported` if the driver lacks it. */
export function requireCapability<Name extends CapabilityName>(
  driver: Driver,
  name: Name,
): NonNullable<DriverCapabilities[Name]> {
  const capability = driver.capabilities[name];
  if (capability === null) throw unsupported(driver, name);
  return capability;
}

export const unsupported = (driver: Driver, name: CapabilityName): HoldfastError =>
  new HoldfastError("not_supported", {
    message: `The driver '${driver.name}' does not support ${MISSING[name]}.`,
  });

/**
 * Returns the names of the capabilities that work on this host. `standby` is among them only if standby preserves
 * memory on this host.
 */
export const capabilityNames = (driver: Driver): CapabilityName[] =>
  (Object.keys(MISSING) as CapabilityName[]).filter((name) =>
    name === "standby" ? standbySupport(driver).kind === "memory" : driver.capabilities[name] !== null,
  );

/** What standby preserves on this host and, if that is not the memory, the reason. */
export interface StandbySupport {
  kind: StandbyKind;
  why: string | null;
}

/**
 * Returns what standby preserves. Every driver can suspend a sandbox to its files: the instance is stopped, and later
 * launched again on the files.
 */
export const standbySupport = ({ name, capabilities }: Driver): StandbySupport =>
  capabilities.standby?.support ?? {
    kind: "files",
    why: `the driver '${name}' does not support memory standby`,
  };

/** Freezes processes in memory. */
export interface Freezer {
  freeze(id: SandboxId, signal: AbortSignal): Promise<void>;
  /** Makes the sandbox's processes run again: thaws them, and continues a keeper that a signal had stopped. */
  thaw(id: SandboxId, signal: AbortSignal): Promise<void>;
}

/**
 * The memory of an instance, saved on disk by a standby. The saved memory is complete and verified. Only the sandbox
 * that the instance belongs to can be restored from it.
 */
export interface Checkpoint {
  id: CheckpointId;
  takenAt: number;
  /** The generation of the instance whose memory was saved. */
  generation: number;
  sizeBytes: number;
}

export interface CheckpointOrder {
  sandboxId: SandboxId;
  generation: number;
  id: CheckpointId;
}

export interface RestoreOrder {
  sandboxId: SandboxId;
  name: string;
  /** Generation of the restored instance. */
  generation: number;
  checkpoint: Checkpoint;
  image: string;
  resources: Resources;
  /**
   * The mounts that the memory expects. If a drive is missing, an empty read-only directory is mounted in its place.
   */
  mounts?: readonly MountPoint[];
  /** Called at the start of each step: `checkpoint`, `root`, `restore`. */
  onStep?: (step: string) => void;
}

/** Thrown if a checkpoint is unusable. No process was started from the checkpoint, and a retry cannot succeed. */
export class CheckpointUnusable extends Error {
  readonly code: "checkpoint_missing" | "checkpoint_damaged" | "checkpoint_foreign";
  constructor(code: CheckpointUnusable["code"], message: string) {
    super(message);
    this.name = "CheckpointUnusable";
    this.code = code;
  }
}

/** Suspends an instance together with its memory. A driver with this ability must also have a freezer. */
export interface MemoryStandby {
  /**
   * Whether this host supports memory standby. Without support, checkpoints that are left over can still be discarded.
   */
  readonly support: StandbySupport;
  /** Estimates the size that a checkpoint would have if it were taken now. */
  memoryBytes(id: SandboxId, signal: AbortSignal): Promise<number>;
  /**
   * Writes the memory of an instance to disk. The caller has frozen the instance and closed its link; the instance
   * stays frozen and unharmed whatever the outcome. Resolves when the checkpoint is complete and verified, and the
   * checkpoint and the sandbox's files are durable. After a failure or an abort there is no usable checkpoint.
   */
  checkpoint(order: CheckpointOrder, signal: AbortSignal): Promise<Checkpoint>;
  /**
   * Creates an instance from a checkpoint and leaves it frozen: none of its processes has run when this resolves.
   * Before the call, the caller has observed that nothing of the sandbox runs. After a failure the caller must stop the
   * instance, because a failed restore may leave parts of it.
   */
  restore(order: RestoreOrder, signal: AbortSignal): Promise<Instance>;
  /** Removes every standby checkpoint of the sandbox, complete or partial, except `keep`. Idempotent. */
  discard(id: SandboxId, keep: CheckpointId | null, signal: AbortSignal): Promise<void>;
}

export interface SaveOrder extends CheckpointOrder {
  kind: StandbyKind;
  /** The journals to include; all other journals are left out. */
  journals: readonly ExecId[];
  /** Upper limit for the checkpoint's size on disk. */
  maxBytes: number;
}

/**
 * Saves checkpoints that stay after a wake and from which sandboxes are forked. A driver with this ability must also
 * have a freezer.
 */
export interface Checkpoints {
  /**
   * Copies the files of an instance, and its memory if requested, into a checkpoint that `discard` does not remove. The
   * caller has frozen the instance and closed its link; the instance stays frozen and unharmed whatever the outcome.
   * Resolves when the copy is complete and durable. After a failure or an abort there is no usable checkpoint.
   */
  save(order: SaveOrder, signal: AbortSignal): Promise<{ sizeBytes: number; memoryBytes: number }>;
  /** Removes every saved checkpoint of the sandbox, complete or partial, except those in `keep`. Idempotent. */
  unsave(id: SandboxId, keep: readonly CheckpointId[], signal: AbortSignal): Promise<void>;
}

export interface MountOrder extends MountPoint {
  sandboxId: SandboxId;
  /**
   * Whether to create the subdirectory if it is missing. True for a new mount request, false when an existing mount is
   * made again.
   */
  make: boolean;
}

/** Thrown if a drive can't be mounted. In that case nothing is mounted, and no process can write to the path. */
export class MountRefused extends Error {
  readonly code: "mount_refused" | "mount_conflict" | "drive_gone";
  constructor(code: MountRefused["code"], message: string) {
    super(message);
    this.name = "MountRefused";
    this.code = code;
  }
}

/** The result of observing a drive. `unknown` is never treated as `absent`. */
export type DriveObservation =
  | { seen: "present"; at: number; problem: Cause | null }
  | { seen: "absent"; at: number; leftovers: string[] }
  | { seen: "unknown"; at: number; why: string };

/** Stores drives and mounts them in sandboxes. */
export interface DriveSupport {
  readonly directories: DriveDirectories;
  /**
   * Mounts a part of a drive in a running instance, from outside. Resolves when the same directory is seen at the
   * mount's path from inside and outside the instance. Does nothing if the identical mount exists. Refuses with
   * `MountRefused`. After a refusal or an abort the caller must call `unmount`.
   */
  mount(order: MountOrder, signal: AbortSignal): Promise<void>;
  /**
   * Removes the mount, whether the instance runs or not. Idempotent. Resolves when the mount is observed to be gone.
   * The directory beneath the mount becomes writable again. With `keepClosed` the directory stays unwritable, because
   * the sandbox still expects the drive at the path.
   */
  unmount(id: SandboxId, path: string, options: { keepClosed: boolean }, signal: AbortSignal): Promise<void>;
}

/** The directories of drives, at a location that the driver chooses. */
export interface DriveDirectories {
  /** Creates the drive's directory, durably. An existing directory is left unchanged. */
  make(order: { id: DriveId; sizeMb: number | null }, signal: AbortSignal): Promise<void>;
  /** Makes the drive available again, for example after a restart of the host. Creates nothing. */
  open(id: DriveId, signal: AbortSignal): Promise<void>;
  /** Observes the given drives in one cheap pass. */
  observe(ids: readonly DriveId[], signal: AbortSignal): Promise<Map<DriveId, DriveObservation>>;
  usage(id: DriveId, signal: AbortSignal): Promise<{ usedBytes: number; freeBytes: number }>;
  /**
   * Returns access to the drive's files, as UID 0 of a sandbox would see them. The caller closes the access after use.
   */
  files(id: DriveId, signal: AbortSignal): Promise<{ files: FileAccess; close(): Promise<void> }>;
  /** Removes the drive. Resolves only when nothing is left. Idempotent. */
  destroy(id: DriveId, signal: AbortSignal): Promise<void>;
  /** Returns all drives that exist, with or without a record. */
  list(signal: AbortSignal): Promise<DriveId[]>;
}

/**
 * A connection to a port. Its bytes are a Duplex and not, like file bodies, a pair of iterables, because the two
 * directions depend on each other: each direction ends by itself, either can block the other, and a failure affects
 * both. Libraries that implement protocols over byte streams expect a Duplex. The engine, which must not depend on the
 * network, may use a Duplex, because it is only Node's interface for a stream.
 */
export interface PortStream {
  /**
   * The boot id of the keeper that connected. If it differs from the link's boot id, another process has connected in
   * the keeper's place, and nothing was sent to it yet.
   */
  readonly bootId: string;
  /** The stream of bytes. Fails with `StreamCut` if the connection is cut. The caller must destroy it when done. */
  readonly bytes: Duplex;
}

/** Connects to ports of sandboxes. */
export interface PortDialing {
  /**
   * Connects to a TCP port on the instance's loopback interface. Refuses with the errors of a keeper: `system`
   * ECONNREFUSED if nothing listens, `system` ETIMEDOUT if the listener does not accept, `limit` at the limit of
   * connections. The signal also ends an established stream. `checkpoint` and a `save` of memory cut the stream,
   * because no connection survives them.
   */
  dial(instance: Instance, port: number, signal: AbortSignal): Promise<PortStream>;
}

/** How an exec ended, according to its journal on disk. */
export interface JournalEnd {
  /**
   * The exec according to the journal's exit record; null if there is none, because the keeper died first or the exec
   * still runs.
   */
  exec: KeeperExec | null;
  /**
   * The end of the output: the offset in the exit record or, without an exit record, the end of the last complete
   * record.
   */
  end: number;
}

/**
 * Journals as files, read from outside the sandbox. Used for execs that the keeper no longer has in memory, and for
 * sandboxes without a keeper. Root in the sandbox can have written anything to them, so their content is untrusted.
 */
export interface JournalsAfterDeath {
  /**
   * Reads complete records from a cursor on; null if there is no journal. Refuses with the errors of a keeper:
   * below_floor, bad_cursor.
   */
  read(
    sandboxId: SandboxId,
    id: ExecId,
    from: { cursor: number; maxBytes: number },
    signal: AbortSignal,
  ): Promise<JournalSlice | null>;
  /** Returns how the exec ended; null if there is no journal. */
  end(sandboxId: SandboxId, id: ExecId, signal: AbortSignal): Promise<JournalEnd | null>;
  /** Moves the journals of a stopped sandbox to an archive that `destroy` does not remove. Idempotent. */
  archive(sandboxId: SandboxId, signal: AbortSignal): Promise<void>;
  /**
   * Removes journals, whether they are archived or not. Missing journals are ignored. The archive of a sandbox is
   * removed with its last journal.
   */
  remove(sandboxId: SandboxId, ids: readonly ExecId[], signal: AbortSignal): Promise<void>;
  /** Returns the sandboxes that have archived journals. */
  archived(signal: AbortSignal): Promise<SandboxId[]>;
  /** Removes all archived journals of one sandbox. */
  drop(sandboxId: SandboxId, signal: AbortSignal): Promise<void>;
}

/** The kernel's counters for an instance since its start, and the resources that the instance uses now. */
export interface Usage {
  at: number;
  cpuMs: number;
  throttledMs: number;
  /** Memory of the instance's processes and memory file systems, without caches. */
  memoryBytes: number;
  /**
   * Number of processes and threads. `pidsRefused` is how often the process limit prevented a new process or thread.
   */
  processes: number;
  pidsRefused: number;
  /** Bytes that reached a disk. */
  readBytes: number;
  writtenBytes: number;
  ioOperations: number;
  /** Usage of the sandbox's own file system; null if it has none. */
  disk: { usedBytes: number; limitBytes: number } | null;
}

/**
 * One process of an instance, seen from the host. The process itself chose its name and command line, so both are
 * untrusted.
 */
export interface ProcessSeen extends ProcessUsage {
  /** The start time. Together with the pid it identifies one process until the host is restarted. */
  startTime: string;
  /** Number of page faults so far. It grows while a process computes on new memory. */
  faults: number;
  /** Number of read and write calls so far; null if the host hides this number. */
  calls: number | null;
}

export interface ProcessSnapshot {
  at: number;
  processes: ProcessSeen[];
  truncated: boolean;
}

/** Examines instances from the host, and repairs their root file system. */
export interface OutsideView {
  /**
   * Reads the counters of the given sandboxes in one cheap pass, like `observe`. Sandboxes without counters are left
   * out.
   */
  measure(ids: readonly SandboxId[], signal: AbortSignal): Promise<Map<SandboxId, Usage>>;
  /**
   * Returns a limited number of the instance's processes and what they wait for. Also works for a frozen or
   * unresponsive instance.
   */
  inspect(id: SandboxId, signal: AbortSignal): Promise<ProcessSnapshot>;
  /**
   * Makes the root and the disk of a running instance visible to the host again. The processes inside do not notice.
   */
  remount(id: SandboxId, signal: AbortSignal): Promise<void>;
  /** Returns how many bytes the processes of each sandbox have written to disk so far, as far as the host knows. */
  written(ids: readonly SandboxId[], signal: AbortSignal): Promise<Map<SandboxId, number>>;
}

/** Files of sandboxes that do not run. */
export interface OfflineFiles {
  /**
   * Returns access to the files of a sandbox without an instance, as UID 0 of that sandbox would see them. Paths that
   * exist only while an instance runs (/proc, /dev, and everything else that is not on its disk) are refused with
   * `not_on_disk`. The caller closes the access after use.
   */
  files(id: SandboxId, signal: AbortSignal): Promise<{ files: FileAccess; close(): Promise<void> }>;
  /**
   * Checks whether the files of sandboxes without an instance exist. Returns a description of what is missing on the
   * host, or null if nothing is missing. A sandbox that can't be examined is left out. Opens, mounts and changes
   * nothing.
   */
  missing(ids: readonly SandboxId[], signal: AbortSignal): Promise<Map<SandboxId, string | null>>;
}

export interface ImportSource {
  /** A tar archive, as a stream of bytes. */
  tar: AsyncIterable<Uint8Array>;
}

export interface ImageStore {
  list(): Promise<Image[]>;
  get(name: string): Promise<Image | null>;
  import(name: string, source: ImportSource, signal: AbortSignal): Promise<Image>;
  remove(name: string, signal: AbortSignal): Promise<void>;
}
