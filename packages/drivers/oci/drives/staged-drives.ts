import { chmodSync, chownSync, mkdirSync, rmdirSync } from "node:fs";
import { join } from "node:path";
import type { SandboxId } from "@holdfast/contract";
import type { MountPoint } from "@holdfast/engine";
import { namesIn } from "../files/checkpoint-files.ts";
import { PASSABLE_BY_GROUP } from "../machine/layout.ts";
import type { Machine } from "../machine/machine.ts";
import type { Manifest } from "../machine/manifest.ts";
import { readMounts } from "../proc/mount-table.ts";
import { mountDrive, requireInit } from "./drive-mounts.ts";
import { dataIn, driveProblem } from "./drives.ts";
import { updateMountNote, userOwned } from "./mount-notes.ts";

/**
 * Mounts the drives of a checkpoint at host paths that only root can access, and returns these paths by mount point.
 * CRIU opens mount sources by path and follows symbolic links, so it must not get a path in the drive itself, where
 * sandboxes can create symbolic links. In place of a missing drive, an empty directory is mounted that no process
 * inside can write to.
 *
 * CRIU can't change whether a mount is read-only. If the request for a drive differs from the checkpoint in this
 * respect, `mountDrive` mounts the drive again after the restore.
 */
export async function stageDrives(
  machine: Machine,
  id: SandboxId,
  { mounts }: Pick<Manifest, "mounts">,
  wanted: readonly MountPoint[],
): Promise<Map<string, string>> {
  const { staged } = machine.layout.sandbox(id);
  await unstageDrives(machine, id);
  const paths = new Map<string, string>();
  const drives = mounts.filter(({ source }) => source.kind === "drive");
  if (drives.length > 0) makePassable(machine, staged);
  for (const [index, { at }] of drives.entries()) {
    const target = join(staged, String(index));
    makePassable(machine, target);
    await stageOne(machine, target, wanted.find(({ path }) => path === at) ?? null);
    paths.set(at, target);
  }
  return paths;
}

/**
 * Creates a directory that the sandbox's root can traverse: CRIU mounts drives with the rights of the sandbox's root.
 */
function makePassable({ idBase }: Machine, directory: string): void {
  mkdirSync(directory, { recursive: true });
  chownSync(directory, 0, idBase);
  chmodSync(directory, PASSABLE_BY_GROUP);
}

async function stageOne(machine: Machine, target: string, wanted: MountPoint | null): Promise<void> {
  const { layout, porter } = machine;
  const stage = (source: string, subpath: string) =>
    porter.stage({ source, subpath, target, readOnly: false, sourceOwner: null });
  if (wanted !== null && driveProblem(layout, wanted.driveId, readMounts()) === null) {
    const made = await stage(dataIn(layout.drive(wanted.driveId)), wanted.subpath);
    if ("staged" in made) return;
    const { driveId, subpath } = wanted;
    machine.log.warn(
      { driveId, subpath, why: made.refused },
      "the directory of a drive is missing at the restore: an empty directory is mounted instead",
    );
  }
  const made = await stage(layout.nothing, "/");
  if ("refused" in made)
    throw new Error(`no placeholder could be mounted for a missing drive: ${made.message}`);
}

/**
 * Unmounts all staged drives, including those left by a restore whose server died: a staged mount keeps the drive in
 * use.
 */
export async function unstageDrives(
  { layout, porter }: Pick<Machine, "layout" | "porter">,
  id: SandboxId,
): Promise<void> {
  const { staged } = layout.sandbox(id);
  for (const name of namesIn(staged)) {
    await porter.unmount(join(staged, name));
    rmdirSync(join(staged, name));
  }
}

/**
 * Unseals the mount points that a fork inherits from its source sandbox: the fork has the files of the source, but not
 * its drives. A mount point at which the fork gets a drive of its own stays sealed, and gets a mount note.
 */
export async function unsealMountPoints(
  machine: Machine,
  id: SandboxId,
  { closed = [] }: Manifest,
  wanted: readonly MountPoint[],
): Promise<void> {
  const { layout, porter } = machine;
  const { root } = layout.sandbox(id);
  for (const { path, before } of closed) {
    const own = wanted.find((each) => each.path === path);
    if (own === undefined) await porter.unseal({ root, path, before });
    else updateMountNote(layout, id, path, { ...pointOf(own), mounted: null, before });
  }
}

/**
 * Replaces the mounts of a fork. Its memory was restored with the mounts of the source sandbox; the fork's own mounts
 * take their place. The fork is frozen meanwhile.
 */
export async function replaceMounts(
  machine: Machine,
  sandboxId: SandboxId,
  { mounts, closed = [] }: Manifest,
  wanted: readonly MountPoint[],
  signal: AbortSignal,
): Promise<void> {
  const init = requireInit(machine, sandboxId);
  for (const own of wanted) await mountDrive(machine, { ...pointOf(own), sandboxId, make: true }, signal);
  for (const { at, source } of mounts) {
    if (source.kind !== "drive" || wanted.some(({ path }) => path === at)) continue;
    const before = closed.find(({ path }) => path === at)?.before ?? userOwned(machine.idBase);
    await machine.porter.unmountFrom({ ...init, target: at, before });
  }
}

const pointOf = ({ driveId, path, subpath, readOnly }: MountPoint): MountPoint => ({
  driveId,
  path,
  subpath,
  readOnly,
});
