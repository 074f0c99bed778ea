import { readdirSync, realpathSync } from "node:fs";
import { join } from "node:path";
import type { InstallationId } from "@holdfast/contract";
import { type Mount, readMounts } from "../proc/mount-table.ts";
import { markersOf } from "./layout.ts";
import { isSamePlace, type Place, placeOf } from "./place.ts";
import { readRecord, withPlace, writeRecord } from "./sandbox-notes.ts";

/** The note in each directory of a sandbox or drive that contains the place of that directory. */
const NOTES = [
  ["sandboxes", "order.json"],
  ["drives", "drive.json"],
] as const;

/**
 * Compares the directories of sandboxes and drives with their own notes. `noted` is the number of directories whose note
 * contains their place. `copied` lists those that are not the directory that their note was written for: their files
 * were copied there, and the kernel and the driver don't accept copied files.
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

/** Adds the place to the notes that lack it, because an earlier version of Holdfast wrote them. */
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
 * Returns a mount point of a sandbox that has this installation's marker and is mounted only outside the state
 * directory; null if there is none. Such a sandbox belongs to another directory with the same identity.
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
