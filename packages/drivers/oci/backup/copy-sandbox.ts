import { chmodSync, chownSync, copyFileSync, existsSync, mkdirSync } from "node:fs";
import { dirname, join } from "node:path";
import type { CheckpointId, SandboxId } from "@holdfast/contract";
import type { Clock } from "@holdfast/engine";
import { filesIn, namesIn } from "../files/checkpoint-files.ts";
import { type DiskMaker, mountDisk } from "../files/disk.ts";
import { makeOwned, makePlace, writtenIn } from "../files/sandbox-files.ts";
import { unmountAll } from "../files/unmount.ts";
import { type Layout, PASSABLE_BY_GROUP, type SandboxPlaces } from "../machine/layout.ts";
import { readRecord, withPlace, writeRecord } from "../machine/sandbox-notes.ts";
import { copyTrees } from "./copy-trees.ts";

/** The parts of a machine that are needed to copy state. */
export type Copier = DiskMaker & { readonly clock: Clock };

/** Source and target of a copy, and its settings. */
export interface Sides {
  from: Layout;
  to: Layout;
  /** Whether no server uses the source. If so, the source's disks are unmounted after the copy. */
  isSourceIdle: boolean;
  /** Whether sandboxes and drives get their own disks in the target. A backup contains directory trees instead. */
  withDisks: boolean;
  /** Maximum number of bytes that one copy may allocate. */
  maxBytes: () => number;
}

export interface SandboxCopy {
  id: SandboxId;
  diskMb: number | undefined;
  /** The standby checkpoint to copy; null for none. */
  checkpoint: CheckpointId | null;
  /** The named checkpoints to copy. */
  saved: readonly CheckpointId[];
}

/**
 * Copies one sandbox whose processes are frozen or not running.
 *
 * The upper layer of an overlay refers to its lower layer, the image, by inode. In the target the image has other
 * inodes, so the kernel would refuse or misread an exact copy of the upper layer. The option `detached` leaves these
 * references out of the copy.
 */
export async function copySandbox(
  machine: Copier,
  sides: Sides,
  order: SandboxCopy,
  signal: AbortSignal,
): Promise<number> {
  const { from, to, withDisks } = sides;
  const source = from.sandbox(order.id);
  const target = to.sandbox(order.id);
  return withSource(machine, sides, source, async () => {
    makeTarget(machine, source, target);
    try {
      return await fill(machine, sides, order, signal);
    } finally {
      if (withDisks) await unmountAll(machine, target, AbortSignal.timeout(UNMOUNT_MS));
    }
  });
}

async function fill(machine: Copier, sides: Sides, order: SandboxCopy, signal: AbortSignal): Promise<number> {
  const { from, to, withDisks, maxBytes } = sides;
  const [source, target] = [from.sandbox(order.id), to.sandbox(order.id)];
  const resources = withDisks && order.diskMb !== undefined ? { diskMb: order.diskMb } : {};
  const make = await makePlace(machine, target, { sandboxId: order.id, resources }, signal);
  const work = make("work");
  const [into, written] = [dirname(work), writtenIn(source)];
  makeOwned(work, 0o700, 0);
  for (const name of ["upper", "control"]) make(name);
  const copy = (names: string[], detached: boolean) =>
    copyTrees(machine, { from: written, to: into, names, maxBytes: maxBytes(), detached }, signal);
  let bytes = (await copy(["upper"], true)) + (await copy(["control"], false));
  const { checkpoint } = order;
  if (checkpoint !== null)
    bytes += await copyCheckpoint(machine, sides, source.checkpoints, target.checkpoints, checkpoint, signal);
  for (const id of order.saved) {
    bytes += await copyCheckpoint(machine, sides, source.saved, target.saved, id, signal);
    await clearWork(machine, filesIn(join(target.saved, id)));
  }
  return bytes;
}

/**
 * Calls `copy` while the source's own disk, if it has one, is mounted. A source that is itself a copy of a state
 * directory may contain the disk's files twice: in the disk's image file, and as plain files at the disk's mount point.
 * The plain files are used if they exist, because the image file was copied while the disk was mounted and may be out
 * of date.
 */
export async function withSource<Result>(
  machine: Copier,
  { isSourceIdle }: Pick<Sides, "isSourceIdle">,
  source: { dir: string; marker: string; diskImage: string; disk: string },
  copy: () => Promise<Result>,
): Promise<Result> {
  if (!existsSync(source.diskImage)) return copy();
  if (isSourceIdle && namesIn(source.disk).some((name) => name !== "lost+found")) return copy();
  await mountDisk(machine, source);
  try {
    return await copy();
  } finally {
    if (isSourceIdle) await unmountAll(machine, source, AbortSignal.timeout(UNMOUNT_MS));
  }
}

export const UNMOUNT_MS = 20_000;

function makeTarget({ idBase }: Copier, source: SandboxPlaces, target: SandboxPlaces): void {
  mkdirSync(target.dir);
  chownSync(target.dir, 0, idBase);
  chmodSync(target.dir, PASSABLE_BY_GROUP);
  mkdirSync(target.root, { mode: 0o700 });
  mkdirSync(target.bundle, { mode: 0o700 });
  // The notes and the bundle's configuration are copied without the porter. That is safe, because the driver wrote
  // these files and the sandbox can't reach them.
  const config = "config.json";
  const notes = [
    [source.order, target.order],
    [source.mounts, target.mounts],
    [join(source.bundle, config), join(target.bundle, config)],
  ] as const;
  for (const [note, copy] of notes) if (existsSync(note)) copyFileSync(note, copy);
  const order = readRecord(target.order);
  if (typeof order === "object" && order !== null) writeRecord(target.order, withPlace(target.dir, order));
}

async function copyCheckpoint(
  machine: Copier,
  { maxBytes }: Sides,
  from: string,
  to: string,
  id: CheckpointId,
  signal: AbortSignal,
): Promise<number> {
  mkdirSync(to, { recursive: true, mode: 0o700 });
  return copyTrees(machine, { from, to, names: [id], maxBytes: maxBytes(), detached: true }, signal);
}

/**
 * Empties the overlay's work directory in a copied checkpoint, because the files in it refer to the original's upper
 * layer.
 */
async function clearWork({ porter }: Copier, files: string): Promise<void> {
  if (!existsSync(files)) return;
  const work = join(files, "work");
  await porter.removeTree(work);
  makeOwned(work, 0o700, 0);
}
