import { lstatSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { type Cause, DEFAULT_USER, type SandboxId } from "@holdfast/contract";
import { type Identity, type MountOrder, MountRefused, type MountSeen } from "@holdfast/engine";
import type { MountedInto, MountPointBefore } from "@holdfast/keeper";
import { strayMounts } from "./bound-mounts.ts";
import { dataIn, driveProblem } from "./drives.ts";
import { isGone } from "./errno.ts";
import type { Machine } from "./machine.ts";
import { type MountNote, madeByUs, noteMount, readMountNotes } from "./mount-notes.ts";
import { isRootMounted, type Mount, parseMounts, readMounts } from "./mounts.ts";
import { findInit, type Living } from "./observe.ts";
import { readOrder } from "./record.ts";

/** What the directory under a mount is while it is closed: nobody inside has rights over what is root's outside. */
const CLOSED: MountPointBefore = { uid: 0, gid: 0, mode: 0o555 };

type Refusal = Extract<MountedInto, { refused: unknown }>;

/** Words for callers: they name no path of the host. */
const REFUSALS: Record<Refusal["refused"], [MountRefused["code"], string]> = {
  symlink: ["mount_refused", "a symbolic link is in the way"],
  not_directory: ["mount_refused", "something that is no directory is in the way"],
  read_only: ["mount_refused", "it is on a file system that can't be written to"],
  occupied: ["mount_conflict", "something else is mounted there"],
  source_missing: ["drive_gone", "the directory is not there in the drive"],
};

/**
 * Mounts a drive in a living instance from outside, by descriptors, in the namespaces of the host and of the instance:
 * nothing of the image is run, and no name that a sandbox chose is followed. The directory under the mount is closed, and
 * where the drive is not there to be mounted, nothing is mounted in its place: what expects the drive can't write elsewhere.
 */
export async function mountDrive(machine: Machine, order: MountOrder, signal: AbortSignal): Promise<void> {
  const { layout } = machine;
  const { sandboxId, path, driveId, subpath, readOnly, make } = order;
  signal.throwIfAborted();
  if (hostDirsOf(machine, sandboxId).some((dir) => path === dir || path.startsWith(`${dir}/`)))
    throw new MountRefused("mount_refused", "what is there is the host's, for reading only");
  const init = requireInit(machine, sandboxId);
  const known = readMountNotes(layout, sandboxId).find((each) => each.path === path);
  await takeAstrayOff(machine, sandboxId, init);
  const before = ownerAt(machine, sandboxId, path) ?? known?.before ?? madeByUs(machine.idBase);
  const note: MountNote = { driveId, path, subpath, readOnly, mounted: known?.mounted ?? null, before };
  noteMount(layout, sandboxId, path, note);
  const problem = driveProblem(layout, driveId, readMounts());
  if (problem !== null) {
    await mountNothing(machine, init, path);
    throw new MountRefused("drive_gone", problem.message);
  }
  const made = await mountAgain(machine, init, path, order, known !== undefined);
  if (made === "gone") throw new Error("the instance is not there any more");
  if ("refused" in made) {
    // Of what was not there before nothing is; what is to be there again is not written elsewhere.
    if (known === undefined && make) noteMount(layout, sandboxId, path, null);
    else await mountNothing(machine, init, path);
    throw refused(made);
  }
  noteMount(layout, sandboxId, path, { ...note, mounted: made.mounted, before: made.before ?? before });
}

/** What was put there in the place of a drive that was gone, or is no longer what was asked for, is taken off first. */
async function mountAgain(
  machine: Machine,
  init: Living,
  target: string,
  { driveId, subpath, readOnly, make }: Omit<MountOrder, "sandboxId" | "path">,
  isOurs: boolean,
): Promise<MountedInto> {
  const from = { source: dataIn(machine.layout.drive(driveId)), subpath, readOnly, make };
  const made = await mountAt(machine, init, target, from);
  if (!isOurs || made === "gone" || !("refused" in made) || made.refused !== "occupied") return made;
  await machine.porter.unmountFrom({ ...init, target, before: CLOSED });
  return mountAt(machine, init, target, from);
}

const mountAt = (
  { porter, idBase }: Pick<Machine, "porter" | "idBase">,
  { pid, startTime }: Living,
  target: string,
  { make, ...from }: { source: string; subpath: string; readOnly: boolean; make: boolean },
): Promise<MountedInto> => {
  const owner = idBase + DEFAULT_USER.uid;
  const owners = { sourceOwner: make ? owner : null, targetOwner: owner };
  return porter.mountInto({ pid, startTime, target, ...from, ...owners });
};

/** An empty directory, for reading. What is still mounted there, such as a drive whose directory was removed, stays. */
async function mountNothing(machine: Machine, init: Living, path: string): Promise<void> {
  const from = { source: machine.layout.nothing, subpath: "/", readOnly: true, make: false };
  const made = await mountAt(machine, init, path, from);
  if (made !== "gone" && "refused" in made && made.refused !== "occupied")
    machine.log.warn({ path, why: made.refused }, "nothing could be put in the place of a drive");
}

function refused({ refused: why }: Refusal): MountRefused {
  const [code, message] = REFUSALS[why];
  return new MountRefused(code, message);
}

export function requireInit(machine: Machine, id: SandboxId): Living {
  const init = findInit(machine, id);
  if (init === null) throw new Error("there is no instance");
  return init;
}

/** Directories of the host that its image shows. */
function hostDirsOf(
  { layout, images }: Pick<Machine, "layout" | "images">,
  id: SandboxId,
): readonly string[] {
  const made = readOrder(layout, id);
  return made === null ? [] : images.resolve(made.image, made.imageVersion).hostDirs;
}

/** Whose a directory is that is about to be closed; null where there is none, or it is closed already. */
function ownerAt({ layout }: Pick<Machine, "layout">, id: SandboxId, path: string): MountPointBefore | null {
  const places = layout.sandbox(id);
  const found = isRootMounted(readMounts(), places) ? directoryAt(places.root, path) : null;
  if (found === null || (found.uid === 0n && found.gid === 0n)) return null;
  return { uid: Number(found.uid), gid: Number(found.gid), mode: Number(found.mode & 0o7777n) };
}

/**
 * Looks and opens nothing, step by step: whatever a sandbox may have put in the way is no directory, and leads nowhere.
 * What is found is compared, and nothing else.
 */
function directoryAt(root: string, path: string) {
  let at = root;
  let found = lstatSync(root, { bigint: true, throwIfNoEntry: false });
  for (const part of path.split("/").filter(Boolean)) {
    if (!found?.isDirectory()) return null;
    at = join(at, part);
    found = lstatSync(at, { bigint: true, throwIfNoEntry: false });
  }
  return found?.isDirectory() ? found : null;
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
  if (init === null) return keepClosed ? undefined : giveBack(machine, id, note);
  await takeAstrayOff(machine, id, init);
  await porter.unmountFrom({ ...init, target: path, before: keepClosed ? CLOSED : note.before });
  const inside = mountsInside(init.pid) ?? [];
  if (inside.some(({ mountPoint }) => mountPoint === path) || astrayIn(machine, id, inside).length > 0)
    throw new Error("it is still mounted after it was taken off");
  if (keepClosed) await mountNothing(machine, init, path);
  else noteMount(layout, id, path, null);
}

/** Of an instance that has ended its mounts are gone; the directory that they were on is its root's. */
async function giveBack(
  { layout, porter }: Machine,
  id: SandboxId,
  { path, before }: MountNote,
): Promise<void> {
  const places = layout.sandbox(id);
  if (!isRootMounted(readMounts(), places)) throw new Error("the root is not mounted on the host");
  await porter.unseal({ root: places.root, path, before });
  noteMount(layout, id, path, null);
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

/**
 * Nobody inside can mount or unmount, but whoever moves the directory above a mount moves the mount with it. What is in the
 * table, and neither the runtime's nor where a drive was put, is one that was carried away.
 */
function astrayIn(machine: Machine, id: SandboxId, inside: readonly Mount[]): Mount[] {
  const drives = readMountNotes(machine.layout, id);
  return strayMounts(inside, { hostDirs: hostDirsOf(machine, id), drives });
}

/** Where a mount was carried to it is taken off, and the directory there is given back to whom it was taken from. */
async function takeAstrayOff(machine: Machine, id: SandboxId, init: Living): Promise<void> {
  const inside = mountsInside(init.pid) ?? [];
  const lost = readMountNotes(machine.layout, id).find(
    ({ path }) => !inside.some(({ mountPoint }) => mountPoint === path),
  );
  for (const { mountPoint: target } of astrayIn(machine, id, inside)) {
    const before = lost?.before ?? madeByUs(machine.idBase);
    await machine.porter.unmountFrom({ ...init, target, before });
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
    const outside = identityOf(dataIn(layout.drive(driveId)), subpath);
    const problem = driveProblem(layout, driveId, mounts) ?? mountProblem(note, outside, inside);
    return { driveId, path, subpath, readOnly, outside, problem };
  });
}

function mountProblem(
  { path, mounted }: MountNote,
  outside: Identity | null,
  inside: readonly Mount[],
): Cause | null {
  if (outside === null)
    return { code: "drive_gone", message: `the directory of the drive at ${path} is not there` };
  const top = inside.findLast(({ mountPoint }) => mountPoint === path);
  if (top === undefined) return { code: "mount_gone", message: `nothing is mounted at ${path} any more` };
  if (top.root.endsWith(DELETED) || mounted?.ino !== outside.ino)
    return { code: "drive_replaced", message: `the directory of the drive at ${path} is another one by now` };
  return null;
}

/** How the mount table says that a directory has no name any more. */
const DELETED = "//deleted";

function identityOf(data: string, subpath: string): Identity | null {
  const found = directoryAt(data, subpath);
  return found === null ? null : { dev: String(found.dev), ino: String(found.ino) };
}
