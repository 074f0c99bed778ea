import { closeSync, existsSync, fsyncSync, openSync, renameSync, writeSync } from "node:fs";
import { DEFAULT_USER, type SandboxId } from "@holdfast/contract";
import type { Identity, MountPoint } from "@holdfast/engine";
import type { MountPointBefore } from "@holdfast/keeper";
import type { Layout } from "./layout.ts";
import { readRecord } from "./record.ts";

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
  /** The directory that is mounted; null until it was seen to be. */
  mounted: Identity | null;
  before: MountPointBefore;
}

interface Notes {
  mounts: readonly MountNote[];
}

/** Of a directory that was made to be mounted over: it becomes the user's, like all else that is made for it. */
export const madeByUs = (idBase: number): MountPointBefore => ({
  uid: idBase + DEFAULT_USER.uid,
  gid: idBase + DEFAULT_USER.gid,
  mode: 0o755,
});

/** One that can't be read is none: whoever is to have the mounts makes them again, which finds those that are there. */
export function readMountNotes(layout: Layout, id: SandboxId): readonly MountNote[] {
  const { mounts: path } = layout.sandbox(id);
  // Most sandboxes have none, and are looked at every few seconds: an error that is caught costs more than this look.
  if (!existsSync(path)) return [];
  const record = readRecord(path);
  const mounts = record === null || record === "unreadable" ? [] : (record as Partial<Notes>).mounts;
  return Array.isArray(mounts) ? mounts : [];
}

/** On disk before what it speaks of is done: it remembers whose the directory is that is about to be closed. */
export function writeMountNotes(layout: Layout, id: SandboxId, mounts: readonly MountNote[]): void {
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

/** Puts a note in the place of the one for the same path, or takes that away. */
export function noteMount(layout: Layout, id: SandboxId, path: string, note: MountNote | null): void {
  const others = readMountNotes(layout, id).filter((each) => each.path !== path);
  writeMountNotes(layout, id, note === null ? others : [...others, note]);
}
