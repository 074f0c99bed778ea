import {
  chmodSync,
  chownSync,
  existsSync,
  mkdirSync,
  renameSync,
  truncateSync,
  writeFileSync,
} from "node:fs";
import { stat } from "node:fs/promises";
import type { DriveId, SandboxId } from "@holdfast/contract";
import type { Porter } from "@holdfast/keeper";
import { type DrivePlaces, PASSABLE_BY_GROUP, type SandboxPlaces } from "../machine/layout.ts";
import type { Machine } from "../machine/machine.ts";
import { findBinary } from "../machine/runtime.ts";
import { LaunchRefusal } from "../machine/step-errors.ts";
import { isGone } from "../proc/errno.ts";
import { HELPER_MARK, helperMark } from "../proc/marked-processes.ts";

const MB = 1_048_576;
/** Size of the image file of a disk. */
export const diskBytes = (diskMb: number): number => diskMb * MB;

const MKFS_MS = 30_000;
const COMPLAINT_BYTES = 2_000;

/**
 * Features of ext4, listed explicitly: a distribution's defaults may include features that the kernel does not support.
 */
const FEATURES =
  "none,has_journal,ext_attr,dir_index,filetype,extent,64bit,flex_bg,sparse_super,large_file,huge_file,dir_nlink,extra_isize,metadata_csum";

/**
 * Size of the ext4 journal of a disk. The journal is kept small, because ext4 writes it cyclically and so all of it
 * soon occupies space on the host's disk.
 */
const journalMb = (diskMb: number): number => Math.min(32, Math.max(4, Math.floor(diskMb / 64)));
/**
 * Space of a disk that is reserved for the mapped root user. The keeper writes as this user and can use the reserved
 * space. Commands write through the overlay, with other credentials, and can't. So when commands have filled the disk,
 * the keeper can still run and journal a command that frees space.
 */
const reservedMb = (diskMb: number): number => Math.min(64, Math.max(1, diskMb / 64));

export const MKFS = "mke2fs";
const LOOP_CONTROL = "/dev/loop-control";

/** The parts of a machine that are needed to create disks. */
export type DiskMaker = Pick<Machine, "installation" | "porter" | "idBase" | "mkfs">;

/** Paths of a sandbox's or drive's own disk: the owner's directory, the image file and the mount point. */
type DiskPlaces = Pick<SandboxPlaces | DrivePlaces, "dir" | "diskImage" | "disk">;

/** Describes what the host lacks to create disks for sandboxes and drives; null if it lacks nothing. */
export function missingForDisks(mkfs = MKFS): string | null {
  if (findBinary(mkfs) === null) return `${MKFS} is not installed`;
  return existsSync(LOOP_CONTROL) ? null : "there are no loop devices";
}

/**
 * Creates a file system in a sparse file, for a drive or for everything that a sandbox writes, and mounts it in the
 * host's mount namespace. A sparse file reads as zeros, so the kernel need not initialise parts of the file system
 * after the mount.
 */
export async function makeDisk(
  machine: DiskMaker,
  id: SandboxId | DriveId,
  places: DiskPlaces,
  diskMb: number,
  signal: AbortSignal,
): Promise<void> {
  const missing = missingForDisks(machine.mkfs);
  if (missing !== null) throw new LaunchRefusal(`this host can't create a separate disk: ${missing}`);
  const draft = `${places.diskImage}.new`;
  writeFileSync(draft, "", { flag: "wx", mode: 0o600 });
  truncateSync(draft, diskBytes(diskMb));
  await makeFileSystem(machine, { id, diskMb, image: draft }, signal);
  renameSync(draft, places.diskImage);
  mkdirSync(places.disk, { mode: 0o700 });
  await mountDisk(machine, places);
  chownSync(places.disk, 0, machine.idBase);
  chmodSync(places.disk, PASSABLE_BY_GROUP);
}

async function makeFileSystem(
  machine: DiskMaker,
  { id, diskMb, image }: { id: SandboxId | DriveId; diskMb: number; image: string },
  signal: AbortSignal,
): Promise<void> {
  const argv = [
    ...[findBinary(machine.mkfs) ?? MKFS, "-q", "-F", "-b", "4096", "-I", "256", "-O", FEATURES],
    ...["-J", `size=${journalMb(diskMb)}`, "-m", ((reservedMb(diskMb) / diskMb) * 100).toFixed(6)],
    ...["-E", "lazy_journal_init=1", image],
  ];
  const env = { MKE2FS_CONFIG: "/dev/null", [HELPER_MARK]: helperMark(machine.installation, id) };
  const deadline = AbortSignal.any([signal, AbortSignal.timeout(MKFS_MS)]);
  const order = { argv, env, keep: { stderr: COMPLAINT_BYTES } };
  const { status, stderr } = await machine.porter.run(order, deadline);
  if (status !== 0) throw new Error(`${MKFS} ended with ${status}: ${stderr.trim()}`);
}

/**
 * Mounts a disk so that space freed in it returns to the host's disk at once. Returns false if the disk's image file is
 * missing.
 */
export async function mountDisk(
  machine: { porter: Pick<Porter, "mountDisk">; idBase: number },
  { diskImage: image, disk: target }: Pick<DiskPlaces, "diskImage" | "disk">,
): Promise<boolean> {
  const options = `discard,resuid=${machine.idBase}`;
  return (await machine.porter.mountDisk({ image, target, options })) === "mounted";
}

/** Whether the sandbox has its own disk, and whether that is mounted. Compares device numbers; needs no mount table. */
export async function diskState({ dir, disk }: SandboxPlaces): Promise<"none" | "mounted" | "unmounted"> {
  try {
    const [above, root] = await Promise.all([stat(dir), stat(disk)]);
    return above.dev === root.dev ? "unmounted" : "mounted";
  } catch (error) {
    if (isGone(error)) return "none";
    throw error;
  }
}
