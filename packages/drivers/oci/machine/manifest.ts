import type { CheckpointId, InstallationId, SandboxId } from "@holdfast/contract";
import type { BoundMount } from "./bound-mounts.ts";
import type { MappedFile } from "./mapped-files.ts";
import type { ClosedDirectory } from "./mount-notes.ts";

export const MANIFEST_VERSION = 1;

/** What a checkpoint is, and all that memory can't be put back without. Written last: where it is, the rest is whole. */
export interface Manifest {
  version: typeof MANIFEST_VERSION;
  id: CheckpointId;
  installation: InstallationId;
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
  /** Of the bundle that the instance was launched with. */
  config: string;
  mounts: BoundMount[];
  /** Directories that drives are mounted over, as they were before they were closed; those of before there were drives lack it. */
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

/** Null where it is not one, or one of another version. */
export const readManifest = (record: unknown): Manifest | null =>
  fits(record, SHAPE) ? (record as Manifest) : null;
