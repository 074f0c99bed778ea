import { existsSync, readdirSync, renameSync, statSync } from "node:fs";
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
  /** Where it lies with others of its kind. */
  among: string;
  whole: string;
  part: string;
}

/** Of the memory that a sandbox sleeps with. */
export const checkpointPlaces = (layout: Layout, id: SandboxId, checkpoint: CheckpointId): CheckpointPlaces =>
  placesIn(layout.sandbox(id).checkpoints, checkpoint);

/** Of what was kept by order. */
export const savedPlaces = (layout: Layout, id: SandboxId, checkpoint: CheckpointId): CheckpointPlaces =>
  placesIn(layout.sandbox(id).saved, checkpoint);

function placesIn(among: string, checkpoint: CheckpointId): CheckpointPlaces {
  const whole = join(among, checkpoint);
  return { among, whole, part: `${whole}${PART}` };
}

/** In a checkpoint, whole or not: CRIU's images and nothing else. */
export const imagesIn = (checkpoint: string): string => join(checkpoint, "images");
/** In one that was kept by order: what the sandbox had written, and its journals. */
export const filesIn = (checkpoint: string): string => join(checkpoint, "files");

export function namesIn(directory: string): string[] {
  try {
    return readdirSync(directory);
  } catch (error) {
    if (isGone(error)) return [];
    throw error;
  }
}

const PART = ".part";

/** Removes those checkpoints of a directory, whole or not, whose names are said. None of them can be used from its beginning on. */
export async function discard(
  { porter }: Pick<Machine, "porter">,
  among: string,
  isUnwanted: (name: string) => boolean,
): Promise<void> {
  for (const part of unmake(among, isUnwanted)) await porter.removeTree(part);
}

/**
 * Takes their names away from checkpoints that are about to be removed, file by file: whoever copies one meanwhile finds
 * that out at the end, and one whose removal is broken off is none any more. Gives where they are then.
 */
export function unmake(among: string, isUnwanted: (name: string) => boolean): string[] {
  return namesIn(among)
    .filter(isUnwanted)
    .map((name) => {
      const part = join(among, name.endsWith(PART) ? name : `${name}${PART}`);
      if (!name.endsWith(PART)) renameSync(join(among, name), part);
      return part;
    });
}

const manifestIn = (whole: string): string => join(whole, "manifest.json");

/** Uses a checkpoint that anybody may remove meanwhile: what comes of that counts only if nobody did. */
export async function whileThere<Result>(whole: string, use: () => Promise<Result>): Promise<Result> {
  const [used] = await Promise.allSettled([use()]);
  if (!existsSync(manifestIn(whole)))
    throw new CheckpointUnusable("checkpoint_missing", "The checkpoint was removed meanwhile.");
  if (used.status === "rejected") throw used.reason;
  return used.value;
}

const damaged = (why: string) => new CheckpointUnusable("checkpoint_damaged", `The checkpoint ${why}.`);
const foreign = (why: string) => new CheckpointUnusable("checkpoint_foreign", `The checkpoint ${why}.`);

/** Its manifest, where that can be read, is of what was asked for, and every image is there in its full size. */
export function verifyWhole(
  { installation }: Pick<Layout, "installation">,
  whole: string,
  { sandboxId, id, generation }: CheckpointOrder,
): Manifest {
  const record = readRecord(manifestIn(whole));
  if (record === null && !existsSync(whole)) {
    throw new CheckpointUnusable("checkpoint_missing", "The checkpoint is not there.");
  }
  const manifest = record === null ? null : readManifest(record);
  if (manifest === null) throw damaged("has no manifest that can be read");
  if (manifest.id !== id || manifest.sandboxId !== sandboxId || manifest.installation !== installation)
    throw foreign("belongs to another sandbox");
  if (manifest.generation !== generation) throw foreign("is of another instance");
  const images = imagesIn(whole);
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
  { porter }: Pick<Machine, "porter">,
  whole: string,
  { images }: Manifest,
): Promise<void> {
  const sums = await porter.sums(imagesIn(whole));
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
