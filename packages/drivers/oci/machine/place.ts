import { statSync } from "node:fs";

/**
 * Identifies a directory. A copy of the directory has another creation time, and usually another inode; neither a
 * rename nor a reboot changes them. A creation time of 0 means that the file system does not record it.
 */
export interface Place {
  ino: string;
  born: string;
}

export function placeOf(dir: string): Place | null {
  const found = statSync(dir, { bigint: true, throwIfNoEntry: false });
  return found === undefined ? null : { ino: String(found.ino), born: String(found.birthtimeNs) };
}

/** Whether two places identify the same directory. */
export const isSamePlace = (a: Place, b: Place): boolean =>
  a.ino === b.ino && (a.born === b.born || a.born === "0" || b.born === "0");
