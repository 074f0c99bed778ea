import { existsSync, readdirSync, renameSync, statSync } from "node:fs";
import { join } from "node:path";
import type { CheckpointId, SandboxId } from "@holdfast/contract";
import { type CheckpointOrder, CheckpointUnusable } from "@holdfast/engine";
import type { Layout } from "../machine/layout.ts";
import type { Machine } from "../machine/machine.ts";
import { type Manifest, readManifest } from "../machine/manifest.ts";
import { readRecord } from "../machine/sandbox-notes.ts";
import { isGone } from "../proc/errno.ts";
import { changedOf } from "./mapped-files.ts";

export interface CheckpointPlaces {
  /** Directory that contains all checkpoints of the same kind. */
  among: string;
  /** Path that the checkpoint has once it is complete. */
  whole: string;
  /** Path of the checkpoint while it is incomplete. */
  part: string;
}

/** The paths that a standby checkpoint has while it is written and when it is complete. */
export const checkpointPlaces = (layout: Layout, id: SandboxId, checkpoint: CheckpointId): CheckpointPlaces =>
  placesIn(layout.sandbox(id).checkpoints, checkpoint);

/** Paths of a named checkpoint. */
export const savedPlaces = (layout: Layout, id: SandboxId, checkpoint: CheckpointId): CheckpointPlaces =>
  placesIn(layout.sandbox(id).saved, checkpoint);

function placesIn(among: string, checkpoint: CheckpointId): CheckpointPlaces {
  const whole = join(among, checkpoint);
  return { among, whole, part: `${whole}${PART}` };
}

/** Directory of CRIU's images in a checkpoint, complete or not. It contains no other files. */
export const imagesIn = (checkpoint: string): string => join(checkpoint, "images");
/** Directory in a named checkpoint that contains the files that the sandbox had written, and the sandbox's journals. */
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

/** Removes unwanted checkpoints, complete or not. Every one of them is made unusable before any file is removed. */
export async function discard(
  { porter }: Pick<Machine, "porter">,
  among: string,
  isUnwanted: (name: string) => boolean,
): Promise<void> {
  for (const part of unmake(among, isUnwanted)) await porter.removeTree(part);
}

/**
 * Renames checkpoints to names of incomplete ones, before their files are removed one by one. So a removal that is
 * aborted leaves no usable checkpoint, and a concurrent copy of a checkpoint finds at its end that the checkpoint was
 * removed. Returns the new paths.
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

/**
 * Calls `use`, which reads a checkpoint that may be removed at the same time. Throws `checkpoint_missing` at the end if
 * the checkpoint was removed.
 */
export async function whileThere<Result>(whole: string, use: () => Promise<Result>): Promise<Result> {
  const [used] = await Promise.allSettled([use()]);
  if (!existsSync(manifestIn(whole)))
    throw new CheckpointUnusable("checkpoint_missing", "The checkpoint was removed meanwhile.");
  if (used.status === "rejected") throw used.reason;
  return used.value;
}

const damaged = (why: string) => new CheckpointUnusable("checkpoint_damaged", `The checkpoint ${why}.`);
const foreign = (why: string) => new CheckpointUnusable("checkpoint_foreign", `The checkpoint ${why}.`);

/**
 * Checks that the checkpoint belongs to the requested sandbox and instance, and that all of CRIU's images exist with
 * the right sizes. Returns the checkpoint's manifest.
 */
export function verifyWhole(
  { installation }: Pick<Layout, "installation">,
  whole: string,
  { sandboxId, id, generation }: CheckpointOrder,
): Manifest {
  const record = readRecord(manifestIn(whole));
  if (record === null && !existsSync(whole)) {
    throw new CheckpointUnusable("checkpoint_missing", "The checkpoint does not exist.");
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
    if (!found.isFile() || found.size !== size) throw damaged("has an image whose size has changed");
  }
  if (namesIn(images).length !== manifest.images.length)
    throw damaged("has images that are not in its manifest");
  return manifest;
}

/** Checks the contents of all of CRIU's images against the checksums in the manifest. */
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

/**
 * Checks that everything that the saved memory depends on is unchanged: architecture, keeper, bundle, host directories
 * and files.
 */
export function verifyDependencies(machine: Machine, manifest: Manifest, config: string | null): void {
  if (manifest.arch !== process.arch) throw foreign("was taken on a machine of another architecture");
  if (!existsSync(join(machine.layout.keepers, manifest.keeperVersion, "keeper"))) {
    throw foreign("needs a version of the keeper that is no longer installed");
  }
  if (config !== manifest.config) throw foreign("belongs to another launch of the sandbox");
  const missing = manifest.mounts.some(({ source }) => source.kind === "host" && !existsSync(source.path));
  if (missing) throw foreign("needs directories of the host that no longer exist");
  const changed = changedOf(manifest.mapped);
  if (changed.length > 0) {
    machine.log.warn(
      { sandboxId: manifest.sandboxId, changed: changed.slice(0, 10) },
      "programs of the host have changed since the checkpoint",
    );
    throw foreign("needs programs of the host that have changed since");
  }
}
