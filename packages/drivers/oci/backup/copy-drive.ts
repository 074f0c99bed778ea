import { lstatSync, mkdirSync } from "node:fs";
import { dirname } from "node:path";
import type { DriveId } from "@holdfast/contract";
import { dataIn, readNote, writeNote } from "../drives/drives.ts";
import { makeDisk } from "../files/disk.ts";
import { unmountAll } from "../files/unmount.ts";
import { type Copier, type Sides, UNMOUNT_MS, withSource } from "./copy-sandbox.ts";
import { copyTrees } from "./copy-trees.ts";

/**
 * Copies the files of a drive. The driver identifies a drive by the inode of its directory, so the copy's note gets the
 * inode of the copy's own directory.
 */
export async function copyDrive(
  machine: Copier,
  sides: Sides,
  id: DriveId,
  signal: AbortSignal,
): Promise<number> {
  const { from, to, withDisks, maxBytes } = sides;
  const [source, target] = [from.drive(id), to.drive(id)];
  const note = readNote(source);
  if (note === null) throw new Error("its files are missing");
  return withSource(machine, sides, source, async () => {
    mkdirSync(target.dir, { mode: 0o700 });
    try {
      if (withDisks && note.sizeMb !== null) await makeDisk(machine, id, target, note.sizeMb, signal);
      const [data, into] = [dataIn(source), dirname(dataIn(target))];
      const copy = { from: dirname(data), to: into, names: ["data"], maxBytes: maxBytes() };
      const bytes = await copyTrees(machine, copy, signal);
      writeNote(target, note.sizeMb, lstatSync(dataIn(target), { bigint: true }).ino);
      return bytes;
    } finally {
      if (withDisks) await unmountAll(machine, target, AbortSignal.timeout(UNMOUNT_MS));
    }
  });
}
