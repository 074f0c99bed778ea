import { readdirSync, readFileSync, renameSync, writeFileSync } from "node:fs";
import { isSandboxId, type SandboxId } from "@holdfast/contract";
import type { Instance } from "@holdfast/engine";
import { isGone } from "./errno.ts";
import type { RuntimeFacts } from "./host.ts";
import type { Layout } from "./layout.ts";

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

/** The runtime that was seen to start an instance here, and what that was tried under. */
export interface RuntimeRecord {
  key: string;
  runtime: RuntimeFacts;
}

export const writeOrder = (layout: Layout, order: OrderRecord): void =>
  writeRecord(layout.sandbox(order.sandboxId).order, order);

export const writeInstance = (layout: Layout, instance: Instance): void =>
  writeRecord(layout.sandbox(instance.sandboxId).instance, instance);

/** Null where there is none or it can't be read as one: the cgroups then say what runs. */
export function readInstance(layout: Layout, id: SandboxId): Instance | null {
  const record = readRecord(layout.sandbox(id).instance) as Partial<Instance> | null | "unreadable";
  if (record === null || record === "unreadable") return null;
  const sound =
    record.sandboxId === id && Number.isInteger(record.pid) && typeof record.startTime === "string";
  return sound ? (record as Instance) : null;
}

export interface References {
  images: Set<string>;
  keepers: Set<string>;
  /** Sandboxes whose order can't be read: they may refer to anything. */
  unreadable: number;
}

export const imageKey = (name: string, version: string): string => `${name}/${version}`;

/** Which images and keepers the sandboxes on disk are made of, running or not. */
export function readReferences(layout: Layout): References {
  const found: References = { images: new Set(), keepers: new Set(), unreadable: 0 };
  for (const id of readdirSync(layout.sandboxes)) {
    if (!isSandboxId(id)) continue;
    const order = readRecord(layout.sandbox(id).order) as OrderRecord | null | "unreadable";
    if (order === null) continue;
    if (order === "unreadable") {
      found.unreadable++;
      continue;
    }
    found.images.add(imageKey(order.image, order.imageVersion));
    found.keepers.add(order.keeperVersion);
  }
  return found;
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
