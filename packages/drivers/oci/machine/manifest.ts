import type { CheckpointId, InstallationId, SandboxId } from "@holdfast/contract";
import type { MountPointBefore } from "@holdfast/keeper";

export const MANIFEST_VERSION = 1;

/** The origin of a mount in a sandbox. It names no path of the installation, because the installation may move. */
export type MountSource =
  | { kind: "keeper" }
  | { kind: "control" }
  | { kind: "host"; path: string }
  /** A drive: whichever drive is requested for the mount's path at the time of the restore. */
  | { kind: "drive" };

export interface BoundMount {
  at: string;
  source: MountSource;
}

/**
 * A directory in the sandbox that is sealed because a drive is mounted over it. `before` is its original owner and
 * mode.
 */
interface ClosedDirectory {
  path: string;
  before: MountPointBefore;
}

/** A host file that was mapped into the sandbox's memory, with its properties at the time of the dump. */
export interface MappedFile {
  path: string;
  ino: string;
  size: string;
  modifiedNs: string;
}

/**
 * Describes a checkpoint and lists what a restore needs. It is written last: if it exists, the checkpoint is complete.
 */
export interface Manifest {
  version: typeof MANIFEST_VERSION;
  id: CheckpointId;
  installation: InstallationId;
  /**
   * The installation that the keeper's memory in this checkpoint names. Set only if that is not `installation`, because
   * the checkpoint came from a backup of another installation.
   */
  takenIn?: InstallationId;
  sandboxId: SandboxId;
  generation: number;
  takenAt: number;
  sizeBytes: number;
  images: { name: string; size: number; sum: string }[];
  arch: string;
  criuVersion: string;
  keeperVersion: string;
  image: string;
  imageVersion: string;
  /** Configuration (config.json) of the bundle that the instance was launched with. */
  config: string;
  mounts: BoundMount[];
  /** Missing in checkpoints of earlier versions of Holdfast, which had no drives. */
  closed?: ClosedDirectory[];
  mapped: MappedFile[];
}

type Shape = { [Key in keyof Manifest]-?: (value: unknown) => boolean };

const isText = (value: unknown): boolean => typeof value === "string" && value !== "";
const isCount = (value: unknown): boolean => Number.isSafeInteger(value) && (value as number) >= 0;
const listOf =
  (shape: Record<string, (value: unknown) => boolean>) =>
  (value: unknown): boolean =>
    Array.isArray(value) && value.every((item) => fits(item, shape));

const isSource = (value: unknown): boolean =>
  fits(value, { kind: (kind) => kind === "keeper" || kind === "control" || kind === "drive" }) ||
  fits(value, { kind: (kind) => kind === "host", path: isText });

const isOwned = (value: unknown): boolean => fits(value, { uid: isCount, gid: isCount, mode: isCount });

const SHAPE: Shape = {
  version: (value) => value === MANIFEST_VERSION,
  id: isText,
  installation: isText,
  takenIn: (value) => value === undefined || isText(value),
  sandboxId: isText,
  generation: isCount,
  takenAt: isCount,
  sizeBytes: isCount,
  images: listOf({ name: isText, size: isCount, sum: isText }),
  arch: isText,
  criuVersion: isText,
  keeperVersion: isText,
  image: isText,
  imageVersion: isText,
  config: isText,
  mounts: listOf({ at: isText, source: isSource }),
  closed: (value) => value === undefined || listOf({ path: isText, before: isOwned })(value),
  mapped: listOf({ path: isText, ino: isText, size: isText, modifiedNs: isText }),
};

function fits(value: unknown, shape: Record<string, (value: unknown) => boolean>): boolean {
  if (typeof value !== "object" || value === null) return false;
  const fields = new Map(Object.entries(value));
  return Object.entries(shape).every(([name, isRight]) => isRight(fields.get(name)));
}

/** Returns the record as a manifest; null if it is not a manifest, or a manifest of another version. */
export const readManifest = (record: unknown): Manifest | null =>
  fits(record, SHAPE) ? (record as Manifest) : null;
