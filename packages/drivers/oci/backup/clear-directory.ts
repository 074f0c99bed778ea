import { readdirSync } from "node:fs";
import { join } from "node:path";
import { Porter } from "@holdfast/keeper";
import { mountsOf, readMounts } from "../proc/mount-table.ts";

/**
 * Empties a directory, for example the target of an interrupted restore. Entries for which `isKept` returns true stay.
 * File systems mounted in the directory are unmounted first. Sandboxes may have written the files, so the porter
 * removes them.
 */
export async function clearDirectory(directory: string, isKept: (name: string) => boolean): Promise<void> {
  const porter = new Porter();
  try {
    for (const { mountPoint } of mountsOf(readMounts(), [directory])) await porter.unmount(mountPoint);
    for (const name of readdirSync(directory))
      if (!isKept(name)) await porter.removeTree(join(directory, name));
  } finally {
    porter.close();
  }
}
