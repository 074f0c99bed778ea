import {
  chmodSync,
  chownSync,
  existsSync,
  mkdirSync,
  rmSync,
  statSync,
  symlinkSync,
  writeFileSync,
} from "node:fs";
import { dirname, join } from "node:path";
import type { SandboxId } from "@holdfast/contract";
import type { LaunchOrder } from "@holdfast/engine";
import { filesIn, whileThere } from "./checkpoints.ts";
import { makeDisk, mountDisk } from "./disk.ts";
import { errnoOf, isGone } from "./errno.ts";
import type { Template } from "./fork.ts";
import type { ImageOnDisk } from "./images.ts";
import { LaunchRefusal } from "./launch-step.ts";
import { PASSABLE_BY_GROUP, type SandboxPlaces } from "./layout.ts";
import type { Machine } from "./machine.ts";
import { diskMountOf, readMounts } from "./mounts.ts";
import { hasProcesses } from "./observe.ts";
import { readOrder, writeOrder } from "./record.ts";
import { seenPath } from "./runtime.ts";
import { copyTree, WRITTEN } from "./save.ts";
import { removeRuntimeState, unmountAll } from "./unmount.ts";

/** Makes the files of a sandbox that has none yet. The order is on disk before anything else: it keeps the image. */
export async function makeFiles(
  machine: Machine,
  order: LaunchOrder,
  signal: AbortSignal,
): Promise<ImageOnDisk> {
  const image = machine.images.resolve(order.image);
  const places = beginFiles(machine, order, image, machine.keeper.version);
  const { idBase } = machine;
  const make = await makePlace(machine, order, signal);
  makeOwned(make("work"), 0o700, 0);
  makeOwned(make("upper"), 0o755, idBase);
  makeOwned(make("control"), 0o700, idBase);
  nameHost(places, order.name, idBase);
  makeBundle(machine, order, image);
  return image;
}

/** Makes the files of a sandbox that begins with what another one had written. */
export async function copyFiles(
  machine: Machine,
  order: LaunchOrder,
  { manifest, whole }: Template,
  signal: AbortSignal,
): Promise<ImageOnDisk> {
  const image = machine.images.resolve(manifest.image, manifest.imageVersion);
  const files = filesIn(whole);
  beginFiles(machine, order, image, manifest.keeperVersion);
  const make = await makePlace(machine, order, signal);
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
    if (errnoOf(error) === "EEXIST") throw new LaunchRefusal("files of an earlier instance are there");
    throw error;
  }
}

/** Gives where each of what the sandbox writes is to be made: in its own directory, or on its own disk with a link there. */
async function makePlace(
  machine: Machine,
  order: LaunchOrder,
  signal: AbortSignal,
): Promise<(name: string) => string> {
  const { dir, disk } = machine.layout.sandbox(order.sandboxId);
  const { diskMb } = order.resources;
  if (diskMb === undefined) return (name) => join(dir, name);
  await makeDisk(machine, order.sandboxId, machine.layout.sandbox(order.sandboxId), diskMb, signal);
  return (name) => {
    symlinkSync(join("disk", name), join(dir, name));
    return join(disk, name);
  };
}

/**
 * Takes over what an earlier instance left: what it wrote stays as it is, its journals included; what spoke of its
 * processes goes. Nothing that is missing is made anew: a sandbox must not come back empty and look well.
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
  await cgroups.remove(order.sandboxId, signal);
  await removeRuntimeState(machine, places);
  rmSync(places.instance, { force: true });
  await porter.removeTree(places.socket);
  noteOrder(machine, order, image, machine.keeper.version);
  makeBundle(machine, order, image);
  return image;
}

/** All that a sandbox wrote is where it was, its own disk mounted. Fails where something is missing. */
export async function requireWritten(machine: Machine, id: SandboxId, signal: AbortSignal): Promise<void> {
  const places = machine.layout.sandbox(id);
  if (existsSync(places.disk)) await takeOverDisk(machine, id, signal);
  for (const dir of [places.root, places.upper, places.work, places.control]) requireDirectory(dir);
}

/** One that the kernel gave up is mounted anew, which repairs what its journal can. */
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

/** The sandbox's own name resolves inside. Only ever done in an upper layer that no sandbox has written to. */
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
