import type { Cause, SandboxId } from "@holdfast/contract";
import type { Identity, MountSeen } from "@holdfast/engine";
import { directoryAt, mountsInside } from "../drives/drive-mounts.ts";
import { dataIn, driveProblem } from "../drives/drives.ts";
import { type MountNote, readMountNotes } from "../drives/mount-notes.ts";
import type { Machine } from "../machine/machine.ts";
import type { Mount } from "../proc/mount-table.ts";

/**
 * Observes every mount that has succeeded: finds the drive's directory on the host, and any problem with drive or
 * mount. Returns at once for a sandbox without mounts; most sandboxes have none.
 */
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
    return { code: "drive_gone", message: `the directory of the drive at ${path} is missing` };
  const top = inside.findLast(({ mountPoint }) => mountPoint === path);
  if (top === undefined) return { code: "mount_gone", message: `the drive at ${path} is no longer mounted` };
  if (top.root.endsWith(DELETED) || mounted?.ino !== outside.ino)
    return {
      code: "drive_replaced",
      message: `the directory of the drive at ${path} was replaced by another one`,
    };
  return null;
}

/** Suffix that the mount table appends to the path of a deleted directory. */
const DELETED = "//deleted";

function identityOf(data: string, subpath: string): Identity | null {
  const found = directoryAt(data, subpath);
  return found === null ? null : { dev: String(found.dev), ino: String(found.ino) };
}
