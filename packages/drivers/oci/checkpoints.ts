import { existsSync, readdirSync, statSync } from "node:fs";
import { join } from "node:path";
import type { CheckpointId, SandboxId } from "@holdfast/contract";
import { type CheckpointOrder, CheckpointUnusable } from "@holdfast/engine";
import { isGone } from "./errno.ts";
import type { Layout } from "./layout.ts";
import type { Machine } from "./machine.ts";
import { type Manifest, readManifest } from "./manifest.ts";
import { changedOf } from "./mapped-files.ts";
import { readRecord } from "./record.ts";

export interface CheckpointPlaces {
  whole: string;
  part: string;
  /** In the part that is being made. */
  images: string;
}

export function checkpointPlaces(layout: Layout, id: SandboxId, checkpoint: CheckpointId): CheckpointPlaces {
  const whole = join(layout.sandbox(id).checkpoints, checkpoint);
  const part = `${whole}.part`;
  return { whole, part, images: join(part, "images") };
}

export function namesIn(directory: string): string[] {
  try {
    return readdirSync(directory);
  } catch (error) {
    if (isGone(error)) return [];
    throw error;
  }
}

/** Removes those checkpoints of a sandbox, whole or not, whose names are said. */
export async function discard(
  { layout, porter }: Pick<Machine, "layout" | "porter">,
  id: SandboxId,
  isUnwanted: (name: string) => boolean,
): Promise<void> {
  const { checkpoints } = layout.sandbox(id);
  for (const name of namesIn(checkpoints).filter(isUnwanted))
    await porter.removeTree(join(checkpoints, name));
}

const damaged = (why: string) => new CheckpointUnusable("checkpoint_damaged", `The checkpoint ${why}.`);
const foreign = (why: string) => new CheckpointUnusable("checkpoint_foreign", `The checkpoint ${why}.`);

/** Its manifest, where that can be read, is of what was asked for, and every image is there in its full size. */
export function verifyWhole(layout: Layout, { sandboxId, id, generation }: CheckpointOrder): Manifest {
  const { whole } = checkpointPlaces(layout, sandboxId, id);
  const record = readRecord(join(whole, "manifest.json"));
  if (record === null && !existsSync(whole)) {
    throw new CheckpointUnusable("checkpoint_missing", "The checkpoint is not there.");
  }
  const manifest = record === null ? null : readManifest(record);
  if (manifest === null) throw damaged("has no manifest that can be read");
  if (manifest.id !== id || manifest.sandboxId !== sandboxId || manifest.installation !== layout.installation)
    throw foreign("belongs to another sandbox");
  if (manifest.generation !== generation) throw foreign("is of another instance");
  const images = join(whole, "images");
  for (const { name, size } of manifest.images) {
    const found = statSync(join(images, name), { throwIfNoEntry: false });
    if (found === undefined) throw damaged("lacks some of its images");
    if (!found.isFile() || found.size !== size)
      throw damaged("has an image of another size than it was written with");
  }
  if (namesIn(images).length !== manifest.images.length)
    throw damaged("has images that were not written with it");
  return manifest;
}

/** Every byte of the images is what was written. */
export async function verifySums(
  { layout, porter }: Pick<Machine, "layout" | "porter">,
  { id, sandboxId, images }: Manifest,
): Promise<void> {
  const sums = await porter.sums(join(checkpointPlaces(layout, sandboxId, id).whole, "images"));
  const isSame = images.every(({ name, size, sum }) => {
    const found = sums?.get(name);
    return found?.size === size && found.sum === sum;
  });
  if (!isSame) throw damaged("has an image whose content has changed");
}

/** What the memory goes with is still what it was. */
export function verifyDependencies(machine: Machine, manifest: Manifest, config: string | null): void {
  if (manifest.arch !== process.arch) throw foreign("was made on a machine of another kind");
  if (!existsSync(join(machine.layout.keepers, manifest.keeperVersion, "keeper"))) {
    throw foreign("goes with a version of the keeper that is no longer there");
  }
  if (config !== manifest.config) throw foreign("goes with another launch of the sandbox");
  const missing = manifest.mounts.some(({ source }) => source.kind === "host" && !existsSync(source.path));
  if (missing) throw foreign("goes with directories of the host that are no longer there");
  const changed = changedOf(manifest.mapped);
  if (changed.length > 0) {
    machine.log.warn(
      { sandboxId: manifest.sandboxId, changed: changed.slice(0, 10) },
      "programs have changed",
    );
    throw foreign("goes with programs of the host that have changed since");
  }
}
