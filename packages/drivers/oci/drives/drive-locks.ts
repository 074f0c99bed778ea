import { lstatSync, readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import type { MountPoint } from "@holdfast/engine";
import { dataIn } from "./drives.ts";
import { errnoOf, isGone } from "./errno.ts";
import type { Layout } from "./layout.ts";

const LOCKS = "/proc/locks";

/** A device as the kernel writes it in its list of locks. */
export function deviceName(dev: bigint): string {
  const major = ((dev >> 8n) & 0xfffn) | ((dev >> 32n) & ~0xfffn);
  const minor = (dev & 0xffn) | ((dev >> 12n) & ~0xffn);
  return [major, minor].map((number) => number.toString(16).padStart(2, "0")).join(":");
}

/** Files that are locked, as the kernel names them: device and inode. */
export const lockedFiles = (list: string): string[] =>
  list.split("\n").flatMap((line) => / (?<file>[0-9a-f]+:[0-9a-f]+:\d+) /.exec(line)?.groups?.file ?? []);

/**
 * Whether one of these processes holds a lock on a drive. Others may take it while it sleeps, and CRIU would wait for it
 * when it wakes: who is in the middle of something that nobody else may do is not put to sleep. The kernel's list tells who
 * took a lock, and not who has it now; so where any file of a drive is locked, the descriptors of each process are looked at.
 */
export function holdsLock(
  layout: Layout,
  mounts: readonly Pick<MountPoint, "driveId">[],
  pids: readonly number[],
): boolean {
  if (mounts.length === 0) return false;
  const devices = mounts.flatMap(({ driveId }) => {
    const found = lstatSync(dataIn(layout.drive(driveId)), { bigint: true, throwIfNoEntry: false });
    return found === undefined ? [] : [`${deviceName(found.dev)}:`];
  });
  const isInDrive = (file: string) => devices.some((device) => file.startsWith(device));
  if (!lockedFiles(readFileSync(LOCKS, "utf8")).some(isInDrive)) return false;
  return pids.some((pid) => locksOf(pid).some(isInDrive));
}

/** Files that the descriptors of a process hold locks on. */
function locksOf(pid: number): string[] {
  const dir = `/proc/${pid}/fdinfo`;
  return quietly(() => readdirSync(dir), []).flatMap((fd) =>
    lockedFiles(
      quietly(() => readFileSync(join(dir, fd), "utf8"), "")
        .split("\n")
        .filter((line) => line.startsWith("lock:"))
        .join("\n"),
    ),
  );
}

/** What has ended meanwhile, or was closed, holds nothing. */
function quietly<Result>(read: () => Result, otherwise: Result): Result {
  try {
    return read();
  } catch (error) {
    if (isGone(error) || errnoOf(error) === "ESRCH") return otherwise;
    throw error;
  }
}
