import { DEFAULT_USER, type SandboxId } from "@holdfast/contract";
import type { Identity, MountPoint } from "@holdfast/engine";
import type { MountPointBefore } from "@holdfast/keeper";
import type { Layout } from "./layout.ts";
import { readRecord, writeRecord } from "./record.ts";

/** A directory inside that a drive is mounted over. Closed to every writer meanwhile; this is what it was. */
export interface ClosedDirectory {
  path: string;
  before: MountPointBefore;
}

/**
 * The driver's own note of a mount, made before it is: what is in the mount table inside and in no note was not ordered,
 * and what is in a note is what a checkpoint may leave out.
 */
export interface MountNote extends MountPoint {
  /** Null until it was seen to be mounted. */
  mounted: Identity | null;
  before: MountPointBefore;
}

interface Notes {
  mounts: MountNote[];
}

/** Of a directory that was made to be mounted over: it becomes the user's, like all else that is made for it. */
export const madeByUs = (idBase: number): MountPointBefore => ({
  uid: idBase + DEFAULT_USER.uid,
  gid: idBase + DEFAULT_USER.gid,
  mode: 0o755,
});

export function readMountNotes(layout: Layout, id: SandboxId): MountNote[] {
  const record = readRecord(layout.sandbox(id).mounts);
  if (record === null) return [];
  const mounts = record === "unreadable" ? undefined : (record as Partial<Notes>).mounts;
  if (!Array.isArray(mounts)) throw new Error("the note of its mounts can't be read");
  return mounts;
}

export const writeMountNotes = (layout: Layout, id: SandboxId, mounts: readonly MountNote[]): void =>
  writeRecord(layout.sandbox(id).mounts, { mounts });

/** Puts a note in the place of the one for the same path, or takes that away. */
export function noteMount(layout: Layout, id: SandboxId, path: string, note: MountNote | null): void {
  const others = readMountNotes(layout, id).filter((each) => each.path !== path);
  writeMountNotes(layout, id, note === null ? others : [...others, note]);
}
