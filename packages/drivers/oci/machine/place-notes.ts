import { readdirSync, realpathSync } from "node:fs";
import { join } from "node:path";
import type { InstallationId } from "@holdfast/contract";
import { type Mount, readMounts } from "../proc/mount-table.ts";
import { markersOf } from "./layout.ts";
import { isSamePlace, type Place, placeOf } from "./place.ts";
import { readRecord, withPlace, writeRecord } from "./sandbox-notes.ts";

/**
 * Where the places (inode and creation time) of directories are recorded: the name of the note in each sandbox's
 * directory, and of the note in each drive's directory.
 */
const NOTES = [
  ["sandboxes", "order.json"],
  ["drives", "drive.json"],
] as const;

/**
 * Finds directories of sandboxes and drives that are copies. A directory is a copy if its place (inode and creation
 * time) is not the one in its note. Kernel and driver don't accept copied files. `copied` lists the ids of the copies;
 * `noted` is the number of directories that were compared, because their note contains a place.
 */
export function copiedDirectories(stateDir: string): { noted: number; copied: string[] } {
  const copied: string[] = [];
  let noted = 0;
  for (const [among, note] of NOTES) {
    for (const id of namesIn(join(stateDir, among))) {
      const dir = join(stateDir, among, id);
      const known = notedPlace(join(dir, note));
      const place = placeOf(dir);
      if (known === null || place === null) continue;
      noted += 1;
      if (!isSamePlace(known, place)) copied.push(id);
    }
  }
  return { noted, copied };
}

/**
 * Adds the directory's place (inode and creation time) to each note that lacks it. An earlier version of Holdfast wrote
 * such notes.
 */
export function notePlaces(stateDir: string): void {
  for (const [among, note] of NOTES) {
    for (const id of namesIn(join(stateDir, among))) {
      const dir = join(stateDir, among, id);
      const record = readRecord(join(dir, note));
      if (typeof record !== "object" || record === null || "place" in record) continue;
      writeRecord(join(dir, note), withPlace(dir, record));
    }
  }
}

function notedPlace(file: string): Place | null {
  const { place } = (readRecord(file) ?? {}) as { place?: Partial<Place> };
  return typeof place?.ino === "string" && typeof place.born === "string" ? (place as Place) : null;
}

/**
 * Searches the mount table for a sandbox with this installation's id that is not mounted in this state directory. Such
 * a sandbox belongs to another state directory with the same installation id. Returns one of the sandbox's mount
 * points, or null if there is no such sandbox.
 */
export function mountedElsewhere(
  stateDir: string,
  installation: InstallationId,
  mounts: readonly Mount[] = readMounts(),
): string | null {
  const own = `${realpathSync(stateDir)}/`;
  const prefix = markersOf(installation);
  const ours = mounts.filter(({ source }) => source.startsWith(prefix));
  const here = new Set(
    ours.filter(({ mountPoint }) => mountPoint.startsWith(own)).map(({ source }) => source),
  );
  return ours.find(({ source }) => !here.has(source))?.mountPoint ?? null;
}

function namesIn(dir: string): string[] {
  try {
    return readdirSync(dir);
  } catch {
    return [];
  }
}
