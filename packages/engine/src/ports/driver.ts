/**
 * The driver port: the methods that every driver has, and the values that the engine and a driver exchange. The
 * optional abilities of a driver are in capabilities.ts.
 */
import type { Cause, CheckpointId, DriveId, Resources, SandboxId, StandbyKind } from "@holdfast/contract";
import type { DriverCapabilities } from "./capabilities.ts";
import type { Link } from "./link.ts";

declare const identityBrand: unique symbol;

/**
 * Identifies one instance on its host. Only the driver that created the identity reads its fields; the engine stores
 * it, passes it back and compares it with `sameIdentity`. The store writes the fields into the same object as the
 * fields of `Instance`, so no field of an identity may have the name of a field of `Instance`.
 */
export type InstanceIdentity = Readonly<Record<string, string | number>> & {
  readonly [identityBrand]: "InstanceIdentity";
};

export function sameIdentity(one: InstanceIdentity, other: InstanceIdentity): boolean {
  const keys = Object.keys(one);
  return keys.length === Object.keys(other).length && keys.every((key) => one[key] === other[key]);
}

/** One started instance of a sandbox. */
export interface Instance {
  sandboxId: SandboxId;
  generation: number;
  identity: InstanceIdentity;
  /** Version of the keeper binary that runs in the instance. */
  keeperVersion: string;
  /** The keeper's boot id, read before any command had run. A peer that answers with another boot id is an impostor. */
  keeperBootId?: string;
}

export interface LaunchOrder {
  sandboxId: SandboxId;
  name: string;
  generation: number;
  image: string;
  resources: Resources;
  /** Whether to launch on the existing files of an earlier instance. */
  restart: boolean;
  /** Set for a fork that has never served: the checkpoint that is copied for the launch. Otherwise absent. */
  fork?: ForkSource | undefined;
  /**
   * Mounts that must exist when the processes run, because the restored memory expects them. All other mounts are made
   * with `mount` once the instance runs.
   */
  mounts?: readonly MountPoint[];
  /**
   * Called at the start of each step. The steps of a launch are `files`, `root`, `runtime`, `keeper`; those of a fork
   * are `checkpoint`, `files`, `root`, `memory`.
   */
  onStep?: (step: string) => void;
}

/**
 * The checkpoint from which a fork is made. The forked instance has the checkpoint's files and, if the checkpoint
 * contains memory, that memory. It has its own name and generation.
 */
export interface ForkSource {
  sandboxId: SandboxId;
  id: CheckpointId;
  kind: StandbyKind;
  /** The generation of the instance from which the checkpoint was taken. */
  generation: number;
}

export interface Capacity {
  cpus: number;
  memoryTotalBytes: number;
  memoryFreeBytes: number;
  diskTotalBytes: number;
  diskFreeBytes: number;
}

/** Identifies a directory by device and inode. */
export interface Identity {
  dev: string;
  ino: string;
}

/** Where a drive, or a part of it, is mounted in a sandbox. */
export interface MountPoint {
  driveId: DriveId;
  path: string;
  /** The mounted directory of the drive; `/` for the whole drive. */
  subpath: string;
  readOnly: boolean;
}

/** A mount of a running instance, as seen from outside. */
export interface MountSeen extends MountPoint {
  /** Identity of the drive's directory that should be mounted at the path; null if that directory is missing. */
  outside: Identity | null;
  /** Why the mount does not work, with a code such as `drive_gone` or `mount_gone`; null if it works. */
  problem: Cause | null;
}

/** The result of observing an instance. `unknown` is never treated as `absent`. */
export type Observation =
  | {
      seen: "present";
      at: number;
      /**
       * Identity of the instance that runs now. If it differs from the record's identity, another instance is running.
       */
      identity: InstanceIdentity;
      state: "running" | "stopped" | "frozen";
      /** Device and inode of the root as the host sees it; null if the root is not mounted. */
      root: Identity | null;
      oomKills: number;
      /** All mounts that were made and not removed since. A mount that is still being made is not listed. */
      mounts: MountSeen[];
      /**
       * The problems that keep this instance from serving, with codes such as `root_unmounted` and `keeper_stopped`.
       */
      problems: Cause[];
    }
  | { seen: "absent"; at: number; leftovers: string[] }
  | { seen: "unknown"; at: number; why: string };

/** The resources of one sandbox that exist on the host and carry a Holdfast marker. */
export interface Found {
  sandboxId: SandboxId;
  /** Readable names of the resources: "process 4711", "cgroup memory", "mount", "loop device", "directory". */
  things: string[];
  /** Whether any of the resources are processes. */
  alive: boolean;
}

/** The methods that every driver has. A driver declares everything else as a capability. */
export interface Driver {
  readonly name: string;
  /** Version of the keepers that this driver launches. */
  readonly keeperVersion: string;
  readonly capabilities: DriverCapabilities;
  capacity(signal: AbortSignal): Promise<Capacity>;
  /**
   * Starts an instance and attaches its markers. After a failed launch the caller must call `stop` and `destroy`,
   * because parts of the instance may exist.
   */
  launch(order: LaunchOrder, signal: AbortSignal): Promise<Instance>;
  /** Adopts an instance that an earlier server launched. Returns null if the instance is gone. */
  recover(instance: Instance, signal: AbortSignal): Promise<Instance | null>;
  connect(instance: Instance, signal: AbortSignal): Promise<Link>;
  /** Observes the given sandboxes in one cheap pass. Never wakes a sandbox and never touches its processes. */
  observe(ids: readonly SandboxId[], signal: AbortSignal): Promise<Map<SandboxId, Observation>>;
  list(signal: AbortSignal): Promise<Found[]>;
  /**
   * Ends every process of the instance, whether it is frozen or not, and then observes the instance and returns the
   * result. Idempotent.
   */
  stop(id: SandboxId, options: { graceMs: number }, signal: AbortSignal): Promise<Observation>;
  /**
   * Removes all resources of the sandbox other than processes: mounts, cgroups, runtime state, files. Resolves only
   * when nothing is left. Idempotent.
   */
  destroy(id: SandboxId, signal: AbortSignal): Promise<void>;
  /** Whether the instance was started since the host's last boot. An instance of an earlier boot is gone. */
  isOfThisBoot(identity: InstanceIdentity): boolean;
  /**
   * Returns what people can use to find the instance: the pid of its first process on this host. Null if the instance
   * does not run on this host.
   */
  describe(identity: InstanceIdentity): { pid: number | null };
  /** Aborts the driver's work in progress. Instances keep running. */
  close(): Promise<void>;
}
