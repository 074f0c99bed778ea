import {
  chmodSync,
  chownSync,
  existsSync,
  lstatSync,
  mkdirSync,
  rmSync,
  statSync,
  symlinkSync,
  writeFileSync,
} from "node:fs";
import { dirname, join } from "node:path";
import type { SandboxId } from "@holdfast/contract";
import type { LaunchOrder } from "@holdfast/engine";
import { hasProcesses } from "../machine/instance-processes.ts";
import { PASSABLE_BY_GROUP, type SandboxPlaces } from "../machine/layout.ts";
import type { ImageOnDisk, Machine } from "../machine/machine.ts";
import type { Manifest } from "../machine/manifest.ts";
import { seenPath } from "../machine/runtime.ts";
import { readOrder, writeOrder } from "../machine/sandbox-notes.ts";
import { LaunchRefusal, StandbyRefusal } from "../machine/step-errors.ts";
import { errnoOf, isGone } from "../proc/errno.ts";
import { diskMountOf, readMounts } from "../proc/mount-table.ts";
import { filesIn, whileThere } from "./checkpoint-files.ts";
import { type DiskMaker, makeDisk, mountDisk } from "./disk.ts";
import { removeRuntimeState, unmountAll } from "./unmount.ts";

/** The directories that hold what a sandbox wrote to its root: the upper layer, and the overlay's work directory. */
export const WRITTEN = ["upper", "work"] as const;

/** The directory that contains upper, work and control: the sandbox's own disk if it has one. */
export const writtenIn = ({ dir, disk }: SandboxPlaces): string => (existsSync(disk) ? disk : dir);

/**
 * Creates the files of a new sandbox. The creation note is written first, because it prevents the image from being
 * removed.
 */
export async function makeFiles(
  machine: Machine,
  order: LaunchOrder,
  signal: AbortSignal,
): Promise<ImageOnDisk> {
  const image = machine.images.resolve(order.image);
  const places = beginFiles(machine, order, image, machine.keeper.version);
  const { idBase } = machine;
  const make = await makePlace(machine, places, order, signal);
  makeOwned(make("work"), 0o700, 0);
  makeOwned(make("upper"), 0o755, idBase);
  makeControl(make("control"), idBase);
  nameHost(places, order.name, idBase);
  makeBundle(machine, order, image);
  return image;
}

/** Creates the files of a fork as a copy of the files in a named checkpoint. */
export async function copyFiles(
  machine: Machine,
  order: LaunchOrder,
  { manifest, whole }: { manifest: Manifest; whole: string },
  signal: AbortSignal,
): Promise<ImageOnDisk> {
  const image = machine.images.resolve(manifest.image, manifest.imageVersion);
  const files = filesIn(whole);
  beginFiles(machine, order, image, manifest.keeperVersion);
  const make = await makePlace(machine, machine.layout.sandbox(order.sandboxId), order, signal);
  const to = dirname(make("work"));
  make("upper");
  const maxBytes = Number.MAX_SAFE_INTEGER;
  const control = make("control");
  makeOwned(control, 0o700, machine.idBase);
  await whileThere(whole, async () => {
    await copyTree(machine, { from: files, to, names: WRITTEN, maxBytes }, signal);
    await copyTree(machine, { from: files, to: control, names: ["journals"], maxBytes }, signal);
  });
  makeBundle(machine, order, image);
  return image;
}

function beginFiles(
  machine: Machine,
  order: LaunchOrder,
  image: ImageOnDisk,
  keeperVersion: string,
): SandboxPlaces {
  const places = machine.layout.sandbox(order.sandboxId);
  makeDirectory(places.dir);
  noteOrder(machine, order, image, keeperVersion);
  chownSync(places.dir, 0, machine.idBase);
  chmodSync(places.dir, PASSABLE_BY_GROUP);
  mkdirSync(places.root, { mode: 0o700 });
  return places;
}

function makeDirectory(dir: string): void {
  try {
    mkdirSync(dir);
  } catch (error) {
    if (errnoOf(error) === "EEXIST") throw new LaunchRefusal("files of an earlier instance already exist");
    throw error;
  }
}

/**
 * Creates the sandbox's own disk, if the sandbox gets one. Returns a function that takes the name of a directory, such
 * as `upper`, and returns the path at which to create it. Without an own disk, the path is in the sandbox's directory.
 * With an own disk, the path is on that disk, and the function creates a symbolic link to it in the sandbox's
 * directory.
 */
export async function makePlace(
  machine: DiskMaker,
  places: SandboxPlaces,
  { sandboxId, resources: { diskMb } }: Pick<LaunchOrder, "sandboxId"> & { resources: { diskMb?: number } },
  signal: AbortSignal,
): Promise<(name: string) => string> {
  const { dir, disk } = places;
  if (diskMb === undefined) return (name) => join(dir, name);
  await makeDisk(machine, sandboxId, places, diskMb, signal);
  return (name) => {
    symlinkSync(join("disk", name), join(dir, name));
    return join(disk, name);
  };
}

/**
 * Prepares the files of an earlier instance for the next one. Files that the sandbox wrote stay, including its
 * journals. Cgroups, runtime state, instance note and socket of the earlier instance are removed. Missing files are not
 * created again, because a sandbox must not restart empty and look healthy.
 */
export async function takeOverFiles(
  machine: Machine,
  order: LaunchOrder,
  signal: AbortSignal,
): Promise<ImageOnDisk> {
  const { layout, cgroups, images, porter } = machine;
  const places = layout.sandbox(order.sandboxId);
  if (hasProcesses(machine, order.sandboxId)) {
    throw new LaunchRefusal("processes of an earlier instance are still there");
  }
  const earlier = readOrder(layout, order.sandboxId);
  if (earlier === null) throw new LaunchRefusal("the files of the earlier instance are missing");
  const image = images.resolve(earlier.image, earlier.imageVersion);
  await requireWritten(machine, order.sandboxId, signal);
  replaceJournals(places, machine.idBase);
  await cgroups.remove(order.sandboxId, signal);
  await removeRuntimeState(machine, places);
  rmSync(places.instance, { force: true });
  await porter.removeTree(places.socket);
  noteOrder(machine, order, image, machine.keeper.version);
  makeBundle(machine, order, image);
  return image;
}

/** Mounts the sandbox's own disk, if it has one, and checks that everything the sandbox wrote exists. */
export async function requireWritten(machine: Machine, id: SandboxId, signal: AbortSignal): Promise<void> {
  const places = machine.layout.sandbox(id);
  if (existsSync(places.disk)) await takeOverDisk(machine, id, signal);
  for (const dir of [places.root, places.upper, places.work, places.control]) requireDirectory(dir);
}

/**
 * Mounts the sandbox's disk. A disk in state "failed" is unmounted first, because the new mount repairs its file system
 * from the ext4 journal.
 */
async function takeOverDisk(machine: Machine, id: SandboxId, signal: AbortSignal): Promise<void> {
  const places = machine.layout.sandbox(id);
  if (diskMountOf(readMounts(), places) === "failed") await unmountAll(machine, places, signal);
  if (!(await mountDisk(machine, places))) {
    throw new LaunchRefusal("the disk of the earlier instance is missing");
  }
}

function requireDirectory(path: string): void {
  try {
    if (statSync(path).isDirectory()) return;
  } catch (error) {
    if (!isGone(error)) throw error;
  }
  throw new LaunchRefusal("some of the earlier instance's files are missing");
}

function noteOrder(machine: Machine, order: LaunchOrder, image: ImageOnDisk, keeperVersion: string): void {
  writeOrder(machine.layout, {
    sandboxId: order.sandboxId,
    generation: order.generation,
    image: image.image.name,
    imageVersion: image.version,
    keeperVersion,
  });
}

export function makeOwned(dir: string, mode: number, id: number): void {
  mkdirSync(dir);
  chownSync(dir, id, id);
  chmodSync(dir, mode);
}

/** Creates the control directory with its journals, so that both exist before the keeper starts. */
function makeControl(control: string, id: number): void {
  makeOwned(control, 0o700, id);
  makeOwned(join(control, "journals"), 0o700, id);
}

/**
 * Creates the directory of journals again if it is missing, as the keeper would. Only the output of earlier commands is
 * lost when that directory is missing. No process of the sandbox runs, so nothing changes the path meanwhile.
 */
function replaceJournals({ journals }: SandboxPlaces, id: number): void {
  if (lstatSync(journals, { throwIfNoEntry: false }) === undefined) makeOwned(journals, 0o700, id);
}

/**
 * Makes the sandbox's host name resolve inside the sandbox. This writes to the upper layer, which is safe only if no
 * sandbox has written to that layer yet.
 */
function nameHost(places: SandboxPlaces, name: string, id: number): void {
  const etc = join(places.upper, "etc");
  makeOwned(etc, 0o755, id);
  const files: [string, string][] = [
    ["hostname", `${name}\n`],
    ["hosts", `127.0.0.1 localhost\n::1 localhost\n127.0.1.1 ${name}\n`],
  ];
  for (const [file, text] of files) {
    writeFileSync(join(etc, file), text, { mode: 0o644 });
    chownSync(join(etc, file), id, id);
  }
}

function makeBundle(machine: Machine, order: LaunchOrder, image: ImageOnDisk): void {
  const places = machine.layout.sandbox(order.sandboxId);
  const seen = (path: string) => seenPath(machine, path);
  const config = machine.bundle({
    sandboxId: order.sandboxId,
    hostname: order.name,
    resources: order.resources,
    cgroupsPath: machine.cgroups.path(order.sandboxId),
    root: seen(places.root),
    keeperDir: seen(machine.keeper.dir),
    control: seen(places.control),
    hostDirs: image.hostDirs.flatMap((dir) => [dir, ...mountPointsBelow(dir)]),
  });
  mkdirSync(places.bundle, { mode: 0o700 });
  writeFileSync(join(places.bundle, "config.json"), config);
}

const mountPointsBelow = (dir: string): string[] =>
  readMounts()
    .map(({ mountPoint }) => mountPoint)
    .filter((path) => path.startsWith(`${dir}/`));

/** Copies files of a sandbox. Returns the number of bytes that the copy occupies on disk. */
export async function copyTree(
  { porter }: Pick<Machine, "porter">,
  copy: Parameters<Machine["porter"]["copy"]>[0],
  signal: AbortSignal,
): Promise<number> {
  const copied = await porter.copy(copy, signal);
  if (copied === "gone") throw new StandbyRefusal("some of the sandbox's files are missing");
  if (copied === "too_much") throw new StandbyRefusal("the disk has too little room for a copy of the files");
  return copied.bytes;
}
