import { closeSync, existsSync, fsyncSync, openSync, renameSync, writeSync } from "node:fs";
import { DEFAULT_USER, type SandboxId } from "@holdfast/contract";
import type { Identity, MountPoint } from "@holdfast/engine";
import type { MountPointBefore } from "@holdfast/keeper";
import type { Layout } from "../machine/layout.ts";
import { readRecord } from "../machine/sandbox-notes.ts";

/**
 * The driver's record of a drive's mount, written before the mount is made. A mount in the sandbox's mount table that
 * has no note was not requested. A checkpoint does not contain the files of drives. So a restore uses the notes to
 * mount the drives again.
 */
export interface MountNote extends MountPoint {
  /** Identity of the mounted directory; null until the mount has succeeded. */
  mounted: Identity | null;
  /** Original owner and mode of the directory under the mount. */
  before: MountPointBefore;
}

interface Notes {
  mounts: readonly MountNote[];
}

/** Owner and mode for a mount point that did not exist before the mount: it belongs to the sandbox's default user. */
export const userOwned = (idBase: number): MountPointBefore => ({
  uid: idBase + DEFAULT_USER.uid,
  gid: idBase + DEFAULT_USER.gid,
  mode: 0o755,
});

/**
 * Reads the notes. An unreadable file counts as empty: the engine then requests all mounts again, and a request for a
 * mount that exists changes nothing.
 */
export function readMountNotes(layout: Layout, id: SandboxId): readonly MountNote[] {
  const { mounts: path } = layout.sandbox(id);
  // Every sandbox is observed every few seconds, and most have no mounts and so no file. Testing whether the file
  // exists is cheaper than catching ENOENT.
  if (!existsSync(path)) return [];
  const record = readRecord(path);
  const mounts = record === null || record === "unreadable" ? [] : (record as Partial<Notes>).mounts;
  return Array.isArray(mounts) ? mounts : [];
}

/**
 * Writes the notes and syncs them to disk. They must survive a crash, because they contain the original owner of a
 * directory that is about to be sealed.
 */
function writeMountNotes(layout: Layout, id: SandboxId, mounts: readonly MountNote[]): void {
  const { mounts: path } = layout.sandbox(id);
  const draft = `${path}.new`;
  const file = openSync(draft, "w", 0o600);
  try {
    writeSync(file, JSON.stringify({ mounts } satisfies Notes));
    fsyncSync(file);
  } finally {
    closeSync(file);
  }
  renameSync(draft, path);
}

/** Replaces the note for the path, or removes it if `note` is null. */
export function updateMountNote(layout: Layout, id: SandboxId, path: string, note: MountNote | null): void {
  const others = readMountNotes(layout, id).filter((each) => each.path !== path);
  writeMountNotes(layout, id, note === null ? others : [...others, note]);
}
