import { existsSync, statSync } from "node:fs";
import type { SandboxId } from "@holdfast/contract";
import type { Machine } from "../machine/machine.ts";
import { readOrder } from "../machine/sandbox-notes.ts";
import { diskMountOf, type Mount } from "../proc/mount-table.ts";

/**
 * Names what is missing from the files of a sandbox without an instance; null if nothing is missing. A restart needs
 * all of these files. Files on the sandbox's own disk can be checked only while that disk is mounted. While it is not
 * mounted, only the disk's image file is checked.
 */
export function missingFiles(
  { layout, images }: Pick<Machine, "layout" | "images">,
  id: SandboxId,
  mounts: readonly Mount[],
): string | null {
  const places = layout.sandbox(id);
  if (!isDirectory(places.dir)) return "all its files are missing on the host";
  const order = readOrder(layout, id);
  if (order === null) return "the note of its image is missing on the host";
  if (!hasImage(images, order)) return "its image is missing on the host";
  const hasDisk = existsSync(places.disk);
  if (hasDisk && !existsSync(places.diskImage))
    return "the image file of its own disk is missing on the host";
  if (!isDirectory(places.root)) return "the directory of its root is missing on the host";
  if (hasDisk && diskMountOf(mounts, places) !== "mounted") return null;
  if (!isDirectory(places.upper)) return "the directory of its files is missing on the host";
  if (!isDirectory(places.work)) return "the work directory of its root file system is missing on the host";
  return isDirectory(places.control) ? null : "its control directory is missing on the host";
}

const isDirectory = (path: string): boolean =>
  statSync(path, { throwIfNoEntry: false })?.isDirectory() ?? false;

function hasImage(images: Machine["images"], order: { image: string; imageVersion: string }): boolean {
  try {
    images.resolve(order.image, order.imageVersion);
    return true;
  } catch {
    return false;
  }
}
