import { chmodSync, chownSync, existsSync, lstatSync, mkdirSync, readFileSync, rmdirSync } from "node:fs";
import { join } from "node:path";
import { type Cause, DEFAULT_USER, type SandboxId } from "@holdfast/contract";
import {
  type Identity,
  type MountOrder,
  type MountPoint,
  MountRefused,
  type MountSeen,
} from "@holdfast/engine";
import type { MountedInto, MountPointBefore } from "@holdfast/keeper";
import { dataIn, driveProblem } from "./drives.ts";
import { isGone } from "./errno.ts";
import { PASSABLE_BY_GROUP } from "./layout.ts";
import type { Machine } from "./machine.ts";
import type { Manifest } from "./manifest.ts";
import { type MountNote, madeByUs, noteMount, readMountNotes } from "./mount-notes.ts";
import { isRootMounted, type Mount, parseMounts, readMounts } from "./mounts.ts";
import { findInit, type Living } from "./observe.ts";

/** What the directory under a mount is while it is closed: nobody inside has rights over what is root's outside. */
const CLOSED: MountPointBefore = { uid: 0, gid: 0, mode: 0o555 };

type Refusal = Extract<MountedInto, { refused: unknown }>;

/** Words for callers: they name no path of the host. */
const REFUSALS: Record<Refusal["refused"], [MountRefused["code"], string]> = {
  symlink: ["mount_refused", "a symbolic link is in the way"],
  not_directory: ["mount_refused", "something that is no directory is in the way"],
  read_only: ["mount_refused", "it is on a file system that can't be written to"],
  occupied: ["mount_conflict", "something else is mounted there"],
  source_missing: ["drive_gone", "the drive's directory is not there"],
};

/**
 * Mounts a drive in a living instance from outside, by descriptors, in the namespaces of the host and of the instance:
 * nothing of the image is run, and no name that a sandbox chose is followed. The directory under the mount is closed, and
 * where the drive is not there to be mounted, nothing is mounted in its place: what expects the drive can't write elsewhere.
 */
export async function mountDrive(machine: Machine, order: MountOrder, signal: AbortSignal): Promise<void> {
  const { layout, porter, idBase } = machine;
  const { sandboxId, path, driveId, subpath, readOnly } = order;
  signal.throwIfAborted();
  const init = requireInit(machine, sandboxId);
  const known = readMountNotes(layout, sandboxId).find((each) => each.path === path);
  const before = known?.before ?? madeByUs(idBase);
  const note: MountNote = { driveId, path, subpath, readOnly, mounted: null, before };
  noteMount(layout, sandboxId, path, { ...note, mounted: known?.mounted ?? null });
  const problem = driveProblem(layout, driveId, readMounts());
  if (problem !== null) {
    await mountNothing(machine, sandboxId, init, note);
    throw new MountRefused("drive_gone", problem.message);
  }
  const from = { source: dataIn(layout.drive(driveId)), subpath, readOnly };
  let made = await mountAt(machine, init, path, from);
  if (known !== undefined && isOccupied(made)) {
    // What was put there in the place of a drive that was gone, or is no longer what was asked for.
    await porter.unmountFrom({ ...init, target: path, before: CLOSED });
    made = await mountAt(machine, init, path, from);
  }
  if (made === "gone") throw new Error("the instance is not there any more");
  if ("refused" in made) throw refused(made);
  noteMount(layout, sandboxId, path, { ...note, mounted: made.mounted, before: made.before ?? before });
}

const mountAt = (
  { porter, idBase }: Pick<Machine, "porter" | "idBase">,
  { pid, startTime }: Living,
  target: string,
  from: { source: string; subpath: string; readOnly: boolean },
): Promise<MountedInto> => {
  const owner = idBase + DEFAULT_USER.uid;
  return porter.mountInto({ pid, startTime, target, ...from, sourceOwner: owner, targetOwner: owner });
};

/** An empty directory, for reading. What is still mounted there, such as a drive whose directory was removed, stays. */
async function mountNothing(machine: Machine, id: SandboxId, init: Living, note: MountNote): Promise<void> {
  const from = { source: machine.layout.nothing, subpath: "/", readOnly: true };
  const made = await mountAt(machine, init, note.path, from);
  if (made === "gone" || isOccupied(made)) return;
  if ("refused" in made) throw refused(made);
  if (made.before !== null) noteMount(machine.layout, id, note.path, { ...note, before: made.before });
}

const isOccupied = (made: MountedInto): boolean =>
  made !== "gone" && "refused" in made && made.refused === "occupied";

function refused({ refused: why }: Refusal): MountRefused {
  const [code, message] = REFUSALS[why];
  return new MountRefused(code, message);
}

function requireInit(machine: Machine, id: SandboxId): Living {
  const init = findInit(machine, id);
  if (init === null) throw new Error("there is no instance");
  return init;
}

/**
 * Whatever is mounted at the path is taken off; then it is looked at again, by the mount table inside. Where the path is to
 * stay closed, nothing is in the drive's place.
 */
export async function unmountDrive(
  machine: Machine,
  id: SandboxId,
  path: string,
  { keepClosed }: { keepClosed: boolean },
): Promise<void> {
  const { layout, porter } = machine;
  const note = readMountNotes(layout, id).find((each) => each.path === path);
  if (note === undefined) return;
  const init = findInit(machine, id);
  const before = keepClosed ? CLOSED : note.before;
  if (init !== null) await porter.unmountFrom({ ...init, target: path, before });
  else if (!keepClosed && isRootMounted(readMounts(), layout.sandbox(id)))
    await porter.unseal({ root: layout.sandbox(id).root, path, before });
  if (init !== null && mountsInside(init.pid)?.some(({ mountPoint }) => mountPoint === path))
    throw new Error("it is still mounted after it was taken off");
  if (!keepClosed) return noteMount(layout, id, path, null);
  if (init !== null) await mountNothing(machine, id, init, note);
}

/** Null where the process has ended. */
function mountsInside(pid: number): Mount[] | null {
  try {
    return parseMounts(readFileSync(`/proc/${pid}/mountinfo`, "utf8"));
  } catch (error) {
    if (isGone(error)) return null;
    throw error;
  }
}

/** Every mount that was made, with what is outside in its place. Cheap: of most sandboxes there is no note. */
export function observeMounts(
  { layout }: Pick<Machine, "layout">,
  id: SandboxId,
  pid: number,
  mounts: readonly Mount[],
): MountSeen[] {
  const notes = readMountNotes(layout, id).filter(({ mounted }) => mounted !== null);
  if (notes.length === 0) return [];
  const inside = mountsInside(pid) ?? [];
  return notes.map((note) => {
    const { driveId, path, subpath, readOnly } = note;
    const outside = identityOf(join(dataIn(layout.drive(driveId)), subpath));
    const problem = driveProblem(layout, driveId, mounts) ?? mountProblem(note, outside, inside);
    return { driveId, path, subpath, readOnly, outside, problem };
  });
}

function mountProblem({ path }: MountNote, outside: Identity | null, inside: readonly Mount[]): Cause | null {
  if (outside === null)
    return { code: "drive_gone", message: `the directory of the drive at ${path} is not there` };
  const top = inside.findLast(({ mountPoint }) => mountPoint === path);
  if (top === undefined) return { code: "mount_gone", message: `nothing is mounted at ${path} any more` };
  if (top.root.endsWith(DELETED))
    return { code: "drive_gone", message: `the directory of the drive at ${path} was removed` };
  return null;
}

/** How the mount table says that a directory has no name any more. */
const DELETED = "//deleted";

/** Looks and opens nothing: whatever a sandbox may have put there is compared, and nothing else. */
function identityOf(path: string): Identity | null {
  const found = lstatSync(path, { bigint: true, throwIfNoEntry: false });
  return found?.isDirectory() ? { dev: String(found.dev), ino: String(found.ino) } : null;
}

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
  const paths = new Map<string, string>();
  const drives = mounts.filter(({ source }) => source.kind === "drive");
  if (drives.length > 0) makePassable(machine, staged);
  for (const [index, { at }] of drives.entries()) {
    const target = join(staged, String(index));
    makePassable(machine, target);
    await machine.porter.unmount(target);
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
  const { layout, porter, idBase } = machine;
  const stage = (source: string, subpath: string) =>
    porter.stage({ source, subpath, target, readOnly: false, sourceOwner: idBase + DEFAULT_USER.uid });
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

export async function unstageDrives(
  { porter }: Pick<Machine, "porter">,
  staged: ReadonlyMap<string, string>,
): Promise<void> {
  for (const target of staged.values()) {
    await porter.unmount(target);
    if (existsSync(target)) rmdirSync(target);
  }
}

/** What drives lie over, for the manifest of a checkpoint. */
export const closedDirectories = (notes: readonly MountNote[]) =>
  notes.map(({ path, before }) => ({ path, before }));

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
  const { pid, startTime } = requireInit(machine, sandboxId);
  for (const { at, source } of mounts) {
    if (source.kind !== "drive") continue;
    const own = wanted.find(({ path }) => path === at);
    if (own !== undefined) {
      await mountDrive(machine, { ...pointOf(own), sandboxId }, signal);
      continue;
    }
    const before = closed.find(({ path }) => path === at)?.before ?? madeByUs(machine.idBase);
    await machine.porter.unmountFrom({ pid, startTime, target: at, before });
  }
}

const pointOf = ({ driveId, path, subpath, readOnly }: MountPoint): MountPoint => ({
  driveId,
  path,
  subpath,
  readOnly,
});
