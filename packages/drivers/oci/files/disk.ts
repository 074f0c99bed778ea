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
import { isGone } from "./errno.ts";
import { LaunchRefusal } from "./launch-step.ts";
import { type DrivePlaces, PASSABLE_BY_GROUP, type SandboxPlaces } from "./layout.ts";
import type { Machine } from "./machine.ts";
import { HELPER_MARK, helperMark } from "./marked.ts";
import { findBinary } from "./runtime.ts";

const MB = 1_048_576;
const MKFS_MS = 30_000;
const COMPLAINT_BYTES = 2_000;

/** Named one by one: what a distribution adds by default may be more than the running kernel knows. */
const FEATURES =
  "none,has_journal,ext_attr,dir_index,filetype,extent,64bit,flex_bg,sparse_super,large_file,huge_file,dir_nlink,extra_isize,metadata_csum";

/** The file system's own journal: as it is used up round and round, all of it ends up on the host's disk. */
const journalMb = (diskMb: number): number => Math.min(32, Math.max(4, Math.floor(diskMb / 64)));
/**
 * What only the keeper may use, as the mapped root: commands write through the overlay, with other rights. On a disk that
 * they filled it can then still journal the command that empties it.
 */
const reservedMb = (diskMb: number): number => Math.min(64, Math.max(1, diskMb / 64));

export const MKFS = "mke2fs";
const LOOP_CONTROL = "/dev/loop-control";

/** Whose the disk is, and where its file and its mount are. */
type DiskPlaces = Pick<SandboxPlaces | DrivePlaces, "dir" | "diskImage" | "disk">;

/** What this host lacks for sandboxes to have disks of their own; null where nothing. */
export function missingForDisks(mkfs = MKFS): string | null {
  if (findBinary(mkfs) === null) return `${MKFS} is not installed`;
  return existsSync(LOOP_CONTROL) ? null : "there are no loop devices";
}

/**
 * Makes a file system of its own for a drive, or for all that a sandbox writes, in a sparse file, and mounts it in the host's mount
 * namespace. Nothing in it is left to be initialised later: a sparse file is zeros already.
 */
export async function makeDisk(
  machine: Machine,
  id: SandboxId | DriveId,
  places: DiskPlaces,
  diskMb: number,
  signal: AbortSignal,
): Promise<void> {
  const missing = missingForDisks(machine.mkfs);
  if (missing !== null)
    throw new LaunchRefusal(`a disk of its own can't be had on this host, because ${missing}`);
  const draft = `${places.diskImage}.new`;
  writeFileSync(draft, "", { flag: "wx", mode: 0o600 });
  truncateSync(draft, diskMb * MB);
  await makeFileSystem(machine, { id, diskMb, image: draft }, signal);
  renameSync(draft, places.diskImage);
  mkdirSync(places.disk, { mode: 0o700 });
  await mountDisk(machine, places);
  chownSync(places.disk, 0, machine.idBase);
  chmodSync(places.disk, PASSABLE_BY_GROUP);
}

async function makeFileSystem(
  machine: Machine,
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

/** False where there is no image. What is removed inside goes back to the host's disk at once. */
export async function mountDisk(
  machine: { porter: Pick<Porter, "mountDisk">; idBase: number },
  { diskImage: image, disk: target }: Pick<DiskPlaces, "diskImage" | "disk">,
): Promise<boolean> {
  const options = `discard,resuid=${machine.idBase}`;
  return (await machine.porter.mountDisk({ image, target, options })) === "mounted";
}

/** Whether the sandbox has a disk of its own, and whether that is mounted; by what is there, without a mount table. */
export async function diskState({ dir, disk }: SandboxPlaces): Promise<"none" | "mounted" | "unmounted"> {
  try {
    const [above, root] = await Promise.all([stat(dir), stat(disk)]);
    return above.dev === root.dev ? "unmounted" : "mounted";
  } catch (error) {
    if (isGone(error)) return "none";
    throw error;
  }
}
