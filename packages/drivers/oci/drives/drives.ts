import { existsSync, lstatSync, mkdirSync, readdirSync, rmSync, statfsSync } from "node:fs";
import { open } from "node:fs/promises";
import { join } from "node:path";
import { type Cause, DEFAULT_USER, type DriveId, HoldfastError, isDriveId } from "@holdfast/contract";
import type { DriveDirectories, DriveObservation, FileAccess } from "@holdfast/engine";
import { diskBytes, makeDisk, mountDisk } from "../files/disk.ts";
import { unmountAll } from "../files/unmount.ts";
import type { DrivePlaces, Layout } from "../machine/layout.ts";
import type { Machine } from "../machine/machine.ts";
import { readRecord, withPlace, writeRecord } from "../machine/sandbox-notes.ts";
import { isDiskFull, LaunchRefusal } from "../machine/step-errors.ts";
import { errnoOf, isGone } from "../proc/errno.ts";
import { loopsIn } from "../proc/loop-devices.ts";
import { diskMountOf, type Mount, mountsOf, readMounts } from "../proc/mount-table.ts";

/** The stored description of a drive. It is written last: if it exists, the drive is complete. */
interface DriveNote {
  sizeMb: number | null;
  /** Inode of the drive's directory, to detect that another directory took its place. */
  ino: string;
}

/**
 * Stores drives as directories of the state directory; a drive with a size limit has its own file system. Sandboxes
 * wrote the files in a drive, so the server never opens these files: the porter serves them from a jail, measures them
 * and removes them.
 */
export class OciDrives implements DriveDirectories {
  readonly #machine: Machine;

  constructor(machine: Machine) {
    this.#machine = machine;
  }

  async make({ id, sizeMb }: { id: DriveId; sizeMb: number | null }, signal: AbortSignal): Promise<void> {
    const { layout, porter } = this.#machine;
    const places = layout.drive(id);
    if (readNote(places) !== null) return this.open(id, signal);
    // A directory without a note is left from an aborted creation. It was never mounted, so it holds no data.
    if (existsSync(places.dir)) await this.destroy(id, signal);
    try {
      await this.#make(id, places, sizeMb, signal);
    } catch (error) {
      if (isDiskFull(error)) throw new HoldfastError("disk_full", { cause: error });
      if (error instanceof LaunchRefusal)
        throw new HoldfastError("not_supported", { message: error.message });
      throw error;
    }
    await porter.sync([layout.drives]);
  }

  async #make(id: DriveId, places: DrivePlaces, sizeMb: number | null, signal: AbortSignal): Promise<void> {
    const { porter, idBase } = this.#machine;
    mkdirSync(places.dir, { mode: 0o700 });
    if (sizeMb !== null) await makeDisk(this.#machine, id, places, sizeMb, signal);
    const data = dataIn(places);
    mkdirSync(data);
    await porter.makeDriveRoot({ path: data, idBase, owner: idBase + DEFAULT_USER.uid });
    if (sizeMb !== null) await porter.sync([places.disk]);
    const { ino } = lstatSync(data, { bigint: true });
    writeNote(places, sizeMb, ino);
    const directory = await open(places.dir, "r");
    await directory.sync().finally(() => directory.close());
  }

  async open(id: DriveId, signal: AbortSignal): Promise<void> {
    signal.throwIfAborted();
    const places = this.#machine.layout.drive(id);
    const note = readNote(places);
    if (note === null) throw new Error("its files are missing");
    if (note.sizeMb !== null && !(await mountDisk(this.#machine, places)))
      throw new Error("its file system is missing");
    const problem = problemOf(places, note, readMounts());
    if (problem !== null) throw new Error(problem.message);
  }

  async observe(ids: readonly DriveId[], _signal: AbortSignal): Promise<Map<DriveId, DriveObservation>> {
    const mounts = readMounts();
    return new Map(ids.map((id) => [id, this.#observe(id, mounts)]));
  }

  #observe(id: DriveId, mounts: readonly Mount[]): DriveObservation {
    const { clock, layout } = this.#machine;
    const at = clock.now();
    const places = layout.drive(id);
    try {
      const left = leftoversOf(places, mounts);
      if (left.length === 0) return { seen: "absent", at, leftovers: [] };
      return { seen: "present", at, problem: driveProblem(layout, id, mounts) };
    } catch (error) {
      return { seen: "unknown", at, why: errnoOf(error) || "unreadable" };
    }
  }

  async usage(id: DriveId, signal: AbortSignal): Promise<{ usedBytes: number; freeBytes: number }> {
    const { layout, porter } = this.#machine;
    const places = layout.drive(id);
    const data = dataIn(places);
    const { bytes } = await porter.usage(data, signal);
    const { bavail, bsize } = statfsSync(existsSync(places.disk) ? places.disk : places.dir);
    return { usedBytes: bytes, freeBytes: bavail * bsize };
  }

  async files(id: DriveId, signal: AbortSignal): Promise<{ files: FileAccess; close(): Promise<void> }> {
    const { layout, jails, idBase, idCount } = this.#machine;
    return jails.open({ owner: id, root: dataIn(layout.drive(id)), idBase, idCount }, signal);
  }

  /**
   * Removes a drive: first its note and disk image, so that the drive can't be mounted again, then the rest. Verifies
   * that nothing is left.
   */
  async destroy(id: DriveId, signal: AbortSignal): Promise<void> {
    signal.throwIfAborted();
    const { layout, porter } = this.#machine;
    const places = layout.drive(id);
    rmSync(places.note, { force: true });
    rmSync(places.diskImage, { force: true });
    await unmountAll(this.#machine, places, signal);
    await porter.removeTree(places.dir);
    const left = leftoversOf(places, readMounts());
    if (left.length > 0) throw new Error(`left after the removal: ${left.join(", ")}`);
  }

  async list(_signal: AbortSignal): Promise<DriveId[]> {
    return readdirSync(this.#machine.layout.drives).filter(isDriveId);
  }
}

/** The directory that contains a drive's files. It is in the drive's own file system if the drive has one. */
export const dataIn = ({ dir, disk }: DrivePlaces): string => join(existsSync(disk) ? disk : dir, "data");

/** Writes the note of a drive whose directory is complete. */
export const writeNote = ({ dir, note }: DrivePlaces, sizeMb: number | null, ino: bigint): void =>
  writeRecord(note, withPlace(dir, { sizeMb, ino: String(ino) } satisfies DriveNote));

export function readNote({ note }: Pick<DrivePlaces, "note">): DriveNote | null {
  const record = readRecord(note) as Partial<DriveNote> | null | "unreadable";
  if (record === null) return null;
  if (record === "unreadable" || typeof record.ino !== "string") throw new Error("its note can't be read");
  return { sizeMb: record.sizeMb ?? null, ino: record.ino };
}

/**
 * Returns the reason why a drive can't be used: it is missing or replaced, or its file system is unmounted or failed.
 * Returns null if the drive can be used.
 */
export function driveProblem(layout: Layout, id: DriveId, mounts: readonly Mount[]): Cause | null {
  const places = layout.drive(id);
  const note = readNote(places);
  if (note === null) return { code: "drive_gone", message: "the drive's files are missing" };
  return problemOf(places, note, mounts);
}

function problemOf(places: DrivePlaces, note: DriveNote, mounts: readonly Mount[]): Cause | null {
  if (note.sizeMb !== null) {
    const state = diskMountOf(mounts, places);
    if (state === "missing")
      return { code: "drive_unmounted", message: "the drive's own file system is not mounted on the host" };
    const image = lstatSync(places.diskImage, { throwIfNoEntry: false });
    if (image?.size !== diskBytes(note.sizeMb)) {
      const fate =
        image === undefined ? "was removed or moved" : "no longer has its size and was overwritten or cut";
      const message = `the image file of the drive's own file system ${fate} on the host; its files are lost once it is unmounted`;
      return { code: "drive_gone", message };
    }
    if (state === "failed")
      return { code: "drive_failed", message: "the drive's own file system can no longer be written to" };
  }
  try {
    const { ino } = lstatSync(dataIn(places), { bigint: true });
    if (String(ino) === note.ino) return null;
    return { code: "drive_replaced", message: "the drive's directory was replaced by another one" };
  } catch (error) {
    if (isGone(error)) return { code: "drive_gone", message: "the drive's directory is missing" };
    throw error;
  }
}

/** Everything on the host that belongs to a drive, described in words for error messages. */
const leftoversOf = ({ dir, marker }: DrivePlaces, mounts: readonly Mount[]): string[] => [
  ...mountsOf(mounts, [dir], marker).map(() => "mount"),
  ...loopsIn(dir).map(() => "loop device"),
  ...(existsSync(dir) ? ["directory"] : []),
];
