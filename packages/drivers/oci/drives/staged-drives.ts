import { chmodSync, chownSync, mkdirSync, rmdirSync } from "node:fs";
import { join } from "node:path";
import type { SandboxId } from "@holdfast/contract";
import type { MountPoint } from "@holdfast/engine";
import { namesIn } from "./checkpoints.ts";
import { mountDrive, requireInit } from "./drive-mounts.ts";
import { dataIn, driveProblem } from "./drives.ts";
import { PASSABLE_BY_GROUP } from "./layout.ts";
import type { Machine } from "./machine.ts";
import type { Manifest } from "./manifest.ts";
import { madeByUs, noteMount } from "./mount-notes.ts";
import { readMounts } from "./mounts.ts";

/**
 * CRIU mounts what it is given by its path, and follows links on the way; so it is given a path that only root has, at which
 * the directory of the drive was mounted by its descriptor. One that is not there is a directory that nobody inside can
 * write to. CRIU can't take rights away that a mount had, nor give it any: `mountDrive` sees to those that have changed.
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

/** CRIU mounts with the rights of the sandbox's root. */
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
      "a part of a drive is not there to wake up with",
    );
  }
  const made = await stage(layout.nothing, "/");
  if ("refused" in made) throw new Error(`nothing could be put in the place of a drive: ${made.message}`);
}

/** Whatever a restore has left there, also one that its server did not see the end of: it would hold the drives. */
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

/** A fork has the files of another sandbox, and not its drives: what those lay over is given back, but for what it has itself. */
export async function reopen(
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
    else noteMount(layout, id, path, { ...pointOf(own), mounted: null, before });
  }
}

/** What came back with another's memory becomes what this sandbox is to have, before anything of it runs. */
export async function takeOverMounts(
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
    const before = closed.find(({ path }) => path === at)?.before ?? madeByUs(machine.idBase);
    await machine.porter.unmountFrom({ ...init, target: at, before });
  }
}

const pointOf = ({ driveId, path, subpath, readOnly }: MountPoint): MountPoint => ({
  driveId,
  path,
  subpath,
  readOnly,
});
