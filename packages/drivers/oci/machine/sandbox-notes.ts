import { existsSync, readdirSync, readFileSync, renameSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { isSandboxId, type SandboxId } from "@holdfast/contract";
import type { Instance } from "@holdfast/engine";
import { isGone } from "./errno.ts";
import type { RuntimeFacts } from "./host.ts";
import type { Layout } from "./layout.ts";
import { type Manifest, readManifest } from "./manifest.ts";

/**
 * The driver's own notes beside a sandbox's files. They make looking cheap; none of them is believed without the process,
 * cgroup or mount that it speaks of. Nothing in a sandbox can write to them.
 */
export interface OrderRecord {
  sandboxId: SandboxId;
  generation: number;
  image: string;
  imageVersion: string;
  keeperVersion: string;
}

/** What every version of the record has; the rest may be missing from one that another version wrote. */
type MadeOf = Pick<OrderRecord, "image" | "imageVersion"> & Partial<OrderRecord>;

/** The runtime that was seen to start an instance here, and what that was tried under. */
export interface RuntimeRecord {
  key: string;
  runtime: RuntimeFacts;
}

/** Whether memory went to disk and came back here when that was tried, and what it was tried under. */
export interface StandbyRecord {
  key: string;
  /** Null where it did. */
  failure: string | null;
}

export const writeOrder = (layout: Layout, order: OrderRecord): void =>
  writeRecord(layout.sandbox(order.sandboxId).order, order);

/** What the driver knows of an instance besides. */
export interface InstanceNote extends Instance {
  /** How many the kernel had killed in its cgroup before this instance was in it. */
  oomKillsBefore?: number;
}

export const writeInstance = (layout: Layout, instance: InstanceNote): void =>
  writeRecord(layout.sandbox(instance.sandboxId).instance, instance);

/** Null where there is none, or it doesn't say what the sandbox is made of. */
export function readOrder(layout: Layout, id: SandboxId): MadeOf | null {
  const record = readRecord(layout.sandbox(id).order);
  return isOrder(record) ? record : null;
}

function isOrder(record: unknown): record is MadeOf {
  if (typeof record !== "object" || record === null) return false;
  const { image, imageVersion } = record as Partial<OrderRecord>;
  return [image, imageVersion].every((text) => typeof text === "string" && text !== "");
}

/** Null where there is none or it can't be read as one: the cgroups then say what runs. */
export function readInstance(layout: Layout, id: SandboxId): InstanceNote | null {
  const record = readRecord(layout.sandbox(id).instance) as Partial<InstanceNote> | null | "unreadable";
  if (record === null || record === "unreadable") return null;
  const sound =
    record.sandboxId === id && Number.isInteger(record.pid) && typeof record.startTime === "string";
  return sound ? (record as InstanceNote) : null;
}

export interface References {
  images: Set<string>;
  keepers: Set<string>;
  /** Sandboxes whose order can't be read: they may refer to anything. */
  unreadable: number;
}

export const imageKey = (name: string, version: string): string => `${name}/${version}`;

/** Which images and keepers the sandboxes on disk are made of, running or not, and their checkpoints. */
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

/** Of the checkpoints that can be used: what the others were made of doesn't matter any more. */
function readManifests(layout: Layout, id: SandboxId): (Manifest | null)[] {
  const { checkpoints, saved } = layout.sandbox(id);
  return [checkpoints, saved]
    .filter((among) => existsSync(among))
    .flatMap((among) =>
      readdirSync(among).map((name) => readManifest(readRecord(join(among, name, "manifest.json")))),
    );
}

/** Whole or not at all, so that a reader never sees half of it. */
export function writeRecord(path: string, record: unknown): void {
  writeFileSync(`${path}.new`, JSON.stringify(record), { mode: 0o600 });
  renameSync(`${path}.new`, path);
}

export function readRecord(path: string): unknown {
  try {
    return JSON.parse(readFileSync(path, "utf8"));
  } catch (error) {
    return isGone(error) ? null : "unreadable";
  }
}
