import { lstatSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { DEFAULT_USER, type SandboxId } from "@holdfast/contract";
import { type MountOrder, MountRefused } from "@holdfast/engine";
import type { MountedInto, MountPointBefore } from "@holdfast/keeper";
import { findInit, type Living } from "../machine/instance-processes.ts";
import type { Machine } from "../machine/machine.ts";
import { readOrder } from "../machine/sandbox-notes.ts";
import { isGone } from "../proc/errno.ts";
import { isRootMounted, type Mount, parseMounts, readMounts } from "../proc/mount-table.ts";
import { strayMounts } from "./bound-mounts.ts";
import { dataIn, driveProblem } from "./drives.ts";
import { type MountNote, readMountNotes, updateMountNote, userOwned } from "./mount-notes.ts";

/**
 * Owner and mode of a sealed directory. The directory under a drive's mount is sealed, so that no process of the
 * sandbox can write to that directory if the mount is missing. A sealed directory belongs to the host's root, so not
 * even the sandbox's root can write to it.
 */
const SEALED: MountPointBefore = { uid: 0, gid: 0, mode: 0o555 };

type Refusal = Extract<MountedInto, { refused: unknown }>;

/** Error code and message for each refusal of the porter. The messages are for callers: they name no host path. */
const REFUSALS: Record<Refusal["refused"], [MountRefused["code"], string]> = {
  symlink: ["mount_refused", "a symbolic link is in the way"],
  not_directory: ["mount_refused", "a file that is not a directory is in the way"],
  read_only: ["mount_refused", "the path is on a read-only file system"],
  occupied: ["mount_conflict", "something else is mounted at the path"],
  source_missing: ["drive_gone", "the drive has no such directory"],
};

/**
 * Mounts a drive in a running instance from outside. The porter reaches the namespaces of the host and of the instance
 * through file descriptors, so no program of the image runs and no symbolic link of a sandbox is followed. The porter
 * also seals the directory under the mount, so that no process of the sandbox can write to that directory. If the drive
 * is missing, the porter mounts an empty read-only directory at the path instead, so that programs can't write there,
 * and this function rejects with `MountRefused`.
 */
export async function mountDrive(machine: Machine, order: MountOrder, signal: AbortSignal): Promise<void> {
  const { layout } = machine;
  const { sandboxId, path, driveId, subpath, readOnly, make } = order;
  signal.throwIfAborted();
  if (hostDirsOf(machine, sandboxId).some((dir) => path === dir || path.startsWith(`${dir}/`)))
    throw new MountRefused("mount_refused", "the path is in a directory of the host, which is read-only");
  const init = requireInit(machine, sandboxId);
  const known = readMountNotes(layout, sandboxId).find((each) => each.path === path);
  await unmountMoved(machine, sandboxId, init);
  const before = ownerAt(machine, sandboxId, path) ?? known?.before ?? userOwned(machine.idBase);
  const note: MountNote = { driveId, path, subpath, readOnly, mounted: known?.mounted ?? null, before };
  updateMountNote(layout, sandboxId, path, note);
  const problem = driveProblem(layout, driveId, readMounts());
  if (problem !== null) {
    await mountPlaceholder(machine, init, path);
    throw new MountRefused("drive_gone", problem.message);
  }
  const made = await mountAgain(machine, init, path, order, known !== undefined);
  if (made === "gone") throw new Error("the instance has ended");
  if ("refused" in made) {
    // If the porter refused a new mount, the note of the mount is removed. If the sandbox already had this mount, the
    // note stays, and a placeholder is mounted so that no program can write to the path.
    if (known === undefined && make) updateMountNote(layout, sandboxId, path, null);
    else await mountPlaceholder(machine, init, path);
    throw refused(made);
  }
  updateMountNote(layout, sandboxId, path, { ...note, mounted: made.mounted, before: made.before ?? before });
}

/**
 * Mounts the drive. If Holdfast has mounted something else at the path (a placeholder, or the drive with other
 * options), that mount is removed first.
 */
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
  await machine.porter.unmountFrom({ ...init, target, before: SEALED });
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

/**
 * Mounts an empty read-only directory at the path. If something is mounted there already, such as a drive that was
 * removed, that mount stays.
 */
async function mountPlaceholder(machine: Machine, init: Living, path: string): Promise<void> {
  const from = { source: machine.layout.nothing, subpath: "/", readOnly: true, make: false };
  const made = await mountAt(machine, init, path, from);
  if (made !== "gone" && "refused" in made && made.refused !== "occupied")
    machine.log.warn({ path, why: made.refused }, "no placeholder could be mounted for a missing drive");
}

function refused({ refused: why }: Refusal): MountRefused {
  const [code, message] = REFUSALS[why];
  return new MountRefused(code, message);
}

export function requireInit(machine: Machine, id: SandboxId): Living {
  const init = findInit(machine, id);
  if (init === null) throw new Error("the sandbox has no instance");
  return init;
}

/** Returns the directories of the host that the sandbox's image shows to the sandbox. */
function hostDirsOf(
  { layout, images }: Pick<Machine, "layout" | "images">,
  id: SandboxId,
): readonly string[] {
  const made = readOrder(layout, id);
  return made === null ? [] : images.resolve(made.image, made.imageVersion).hostDirs;
}

/** Owner and mode of a directory that is about to be sealed; null if it is missing or sealed already. */
function ownerAt({ layout }: Pick<Machine, "layout">, id: SandboxId, path: string): MountPointBefore | null {
  const places = layout.sandbox(id);
  const found = isRootMounted(readMounts(), places) ? directoryAt(places.root, path) : null;
  if (found === null || (found.uid === 0n && found.gid === 0n)) return null;
  return { uid: Number(found.uid), gid: Number(found.gid), mode: Number(found.mode & 0o7777n) };
}

/**
 * Returns the stat of a directory below `root`; null if the path does not exist or is not a directory. Each path
 * component is checked with `lstat`, so a symbolic link of the sandbox is not followed, and nothing is opened. A
 * sandbox may change the path meanwhile: use the result only to compare it.
 */
export function directoryAt(root: string, path: string) {
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
 * Unmounts the drive, and then checks in the instance's mount table that nothing is mounted at the path. With
 * `keepClosed`, the directory under the mount stays sealed and gets a placeholder mounted over it, because the sandbox
 * still expects the drive there. Otherwise the directory gets its original owner and mode again.
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
  if (init === null) return keepClosed ? undefined : unsealMountPoint(machine, id, note);
  await unmountMoved(machine, id, init);
  await porter.unmountFrom({ ...init, target: path, before: keepClosed ? SEALED : note.before });
  const inside = mountsInside(init.pid) ?? [];
  if (inside.some(({ mountPoint }) => mountPoint === path) || movedMounts(machine, id, inside).length > 0)
    throw new Error("the drive is still mounted after the unmount");
  if (keepClosed) await mountPlaceholder(machine, init, path);
  else updateMountNote(layout, id, path, null);
}

/**
 * Unseals the mount point of an instance that has ended. The mount ended with the instance, but the sealed directory
 * under it is still on the sandbox's disk.
 */
async function unsealMountPoint(
  { layout, porter }: Machine,
  id: SandboxId,
  { path, before }: MountNote,
): Promise<void> {
  const places = layout.sandbox(id);
  if (!isRootMounted(readMounts(), places)) throw new Error("the root is not mounted on the host");
  await porter.unseal({ root: places.root, path, before });
  updateMountNote(layout, id, path, null);
}

/** The mount table as the process sees it; null if the process has ended. */
export function mountsInside(pid: number): Mount[] | null {
  try {
    return parseMounts(readFileSync(`/proc/${pid}/mountinfo`, "utf8"));
  } catch (error) {
    if (isGone(error)) return null;
    throw error;
  }
}

/**
 * Returns mounts that were moved. Processes inside can't mount or unmount, but a rename of a parent directory moves the
 * mounts in it. So a mount that is neither from the runtime nor at the path of a drive has been moved.
 */
function movedMounts(machine: Machine, id: SandboxId, inside: readonly Mount[]): Mount[] {
  const drives = readMountNotes(machine.layout, id);
  return strayMounts(inside, { hostDirs: hostDirsOf(machine, id), drives });
}

/** Unmounts moved mounts at their new paths, and restores owner and mode of the directories under them. */
async function unmountMoved(machine: Machine, id: SandboxId, init: Living): Promise<void> {
  const inside = mountsInside(init.pid) ?? [];
  const lost = readMountNotes(machine.layout, id).find(
    ({ path }) => !inside.some(({ mountPoint }) => mountPoint === path),
  );
  for (const { mountPoint: target } of movedMounts(machine, id, inside)) {
    const before = lost?.before ?? userOwned(machine.idBase);
    await machine.porter.unmountFrom({ ...init, target, before });
  }
}
