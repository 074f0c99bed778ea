import { lstatSync, readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import type { MountPoint } from "@holdfast/engine";
import type { Layout } from "../machine/layout.ts";
import { errnoOf, isGone } from "../proc/errno.ts";
import { dataIn } from "./drives.ts";

const LOCKS = "/proc/locks";

/** Device number in the format of /proc/locks. */
export function deviceName(dev: bigint): string {
  const major = ((dev >> 8n) & 0xfffn) | ((dev >> 32n) & ~0xfffn);
  const minor = (dev & 0xffn) | ((dev >> 12n) & ~0xffn);
  return [major, minor].map((number) => number.toString(16).padStart(2, "0")).join(":");
}

/** Parses lines of /proc/locks. Returns the locked files as `device:inode`. */
export const lockedFiles = (list: string): string[] =>
  list.split("\n").flatMap((line) => / (?<file>[0-9a-f]+:[0-9a-f]+:\d+) /.exec(line)?.groups?.file ?? []);

/**
 * Returns whether one of the processes holds a lock on a file in a drive. If so, the sandbox is not suspended:
 * another sandbox could take the lock during the standby, and CRIU would wait for the lock at the restore.
 *
 * /proc/locks shows only which process took a lock, but another process may hold the lock now. So if any file of a
 * drive is locked, this function reads the file descriptors of each process.
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

/** Returns the files that a process has locked through its file descriptors, as `device:inode`. */
function locksOf(pid: number): string[] {
  const dir = `/proc/${pid}/fdinfo`;
  return unlessGone(() => readdirSync(dir), []).flatMap((fd) =>
    lockedFiles(
      unlessGone(() => readFileSync(join(dir, fd), "utf8"), "")
        .split("\n")
        .filter((line) => line.startsWith("lock:"))
        .join("\n"),
    ),
  );
}

/**
 * Returns the result of `read`. Returns `otherwise` if the process has ended or has closed the file descriptor
 * meanwhile: then the process holds no lock through it.
 */
function unlessGone<Result>(read: () => Result, otherwise: Result): Result {
  try {
    return read();
  } catch (error) {
    if (isGone(error) || errnoOf(error) === "ESRCH") return otherwise;
    throw error;
  }
}
