import { existsSync, readdirSync, readFileSync, renameSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { isSandboxId, type SandboxId } from "@holdfast/contract";
import type { Identity } from "@holdfast/engine";
import { isGone } from "../proc/errno.ts";
import type { RuntimeFacts } from "./host-facts.ts";
import type { ProcessIdentity } from "./instance-identity.ts";
import type { Layout } from "./layout.ts";
import { type Manifest, readManifest } from "./manifest.ts";
import { type Place, placeOf } from "./place.ts";

/**
 * Creation note: what a sandbox was created from. The driver stores this and other notes next to the sandbox's files,
 * where the sandbox can't write. Notes make observation cheap; the driver trusts a note only if it also finds the
 * process, cgroup or mount that the note describes.
 */
interface OrderRecord {
  sandboxId: SandboxId;
  generation: number;
  image: string;
  imageVersion: string;
  keeperVersion: string;
  /**
   * Identifies the directory that contains this note, so that a copy of the directory is recognised. `writeOrder` adds
   * this field.
   */
  place?: Place;
}

/** A creation note as read from disk. Another version of Holdfast may have written it without the optional fields. */
type StoredOrder = Pick<OrderRecord, "image" | "imageVersion"> & Partial<OrderRecord>;

/**
 * Record of the runtime that successfully started a trial instance on this host. `key` describes the conditions of the
 * trial; when they change, the record is obsolete.
 */
export interface RuntimeRecord {
  key: string;
  runtime: RuntimeFacts;
}

/**
 * Result of the trial of memory standby on this host. `key` describes the conditions of the trial; when they change,
 * the result is obsolete.
 */
export interface StandbyRecord {
  key: string;
  /** Null if memory was written to disk and restored. */
  failure: string | null;
}

export function writeOrder(layout: Layout, order: OrderRecord): void {
  const { dir, order: file } = layout.sandbox(order.sandboxId);
  writeRecord(file, withPlace(dir, order));
}

/** Returns the note with the place of the directory that it describes, so that a copy of the directory is recognised. */
export function withPlace<Note extends object>(dir: string, note: Note): Note & { place?: Place } {
  const place = placeOf(dir);
  return place === null ? note : { ...note, place };
}

/**
 * Identities of the paths that a running instance writes to: overlay layers, control directory, journals, disk image.
 * Null stands for a path that did not exist when the note was written.
 */
export type WritePaths = Record<"upper" | "work" | "control" | "journals", Identity | null> & {
  /** Notes of earlier versions lack the size of the image file. */
  diskImage: (Identity & { size?: number }) | null;
};

/** Note of a started instance and its first process. */
export interface InstanceNote extends ProcessIdentity {
  sandboxId: SandboxId;
  generation: number;
  keeperVersion: string;
  /** OOM kills that the cgroup had counted before this instance entered it. */
  oomKillsBefore?: number;
  /**
   * The paths that the instance was launched with. Missing in a note that an earlier version wrote, until the instance
   * is recovered.
   */
  writePaths?: WritePaths;
}

export const writeInstance = (layout: Layout, instance: InstanceNote): void =>
  writeRecord(layout.sandbox(instance.sandboxId).instance, instance);

/** Reads the creation note of a sandbox. Returns null if it is missing or does not name the image and its version. */
export function readOrder(layout: Layout, id: SandboxId): StoredOrder | null {
  const record = readRecord(layout.sandbox(id).order);
  return isOrder(record) ? record : null;
}

function isOrder(record: unknown): record is StoredOrder {
  if (typeof record !== "object" || record === null) return false;
  const { image, imageVersion } = record as Partial<OrderRecord>;
  return [image, imageVersion].every((text) => typeof text === "string" && text !== "");
}

/** Reads the instance note. Returns null if it is missing or invalid; callers then search the cgroups for processes. */
export function readInstance(layout: Layout, id: SandboxId): InstanceNote | null {
  const record = readRecord(layout.sandbox(id).instance) as Partial<InstanceNote> | null | "unreadable";
  if (record === null || record === "unreadable") return null;
  const sound =
    record.sandboxId === id && Number.isInteger(record.pid) && typeof record.startTime === "string";
  return sound ? (record as InstanceNote) : null;
}

/** The images and keepers in use, which must not be removed. */
interface References {
  images: Set<string>;
  keepers: Set<string>;
  /**
   * Number of sandboxes whose creation note can't be read. Such a sandbox may use any image or keeper, so none may be
   * removed.
   */
  unreadable: number;
}

export const imageKey = (name: string, version: string): string => `${name}/${version}`;

/**
 * Collects the images and keepers in use: those of all sandboxes on disk, running or not, and those of their
 * checkpoints.
 */
export function readReferences(layout: Layout): References {
  const found: References = { images: new Set(), keepers: new Set(), unreadable: 0 };
  for (const id of readdirSync(layout.sandboxes)) {
    if (!isSandboxId(id)) continue;
    const order = readRecord(layout.sandbox(id).order);
    if (order === null) continue;
    if (!isOrder(order) || typeof order.keeperVersion !== "string") {
      found.unreadable++;
      continue;
    }
    found.images.add(imageKey(order.image, order.imageVersion));
    found.keepers.add(order.keeperVersion);
    for (const manifest of readManifests(layout, id)) {
      if (manifest === null) continue;
      found.images.add(imageKey(manifest.image, manifest.imageVersion));
      found.keepers.add(manifest.keeperVersion);
    }
  }
  return found;
}

/**
 * Reads the manifests of a sandbox's checkpoints. Returns null for an unusable checkpoint, which needs no image and no
 * keeper.
 */
function readManifests(layout: Layout, id: SandboxId): (Manifest | null)[] {
  const { checkpoints, saved } = layout.sandbox(id);
  return [checkpoints, saved]
    .filter((among) => existsSync(among))
    .flatMap((among) =>
      readdirSync(among).map((name) => readManifest(readRecord(join(among, name, "manifest.json")))),
    );
}

/** Writes a record atomically, so that a reader never sees a part of it. */
export function writeRecord(path: string, record: unknown): void {
  writeFileSync(`${path}.new`, JSON.stringify(record), { mode: 0o600 });
  renameSync(`${path}.new`, path);
}

/** Reads a JSON file: null if it does not exist, "unreadable" if it can't be read or parsed. */
export function readRecord(path: string): unknown {
  try {
    return JSON.parse(readFileSync(path, "utf8"));
  } catch (error) {
    return isGone(error) ? null : "unreadable";
  }
}
