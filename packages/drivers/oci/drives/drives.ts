import { existsSync, lstatSync, mkdirSync, readdirSync, rmSync, statfsSync } from "node:fs";
import { open } from "node:fs/promises";
import { join } from "node:path";
import { type Cause, DEFAULT_USER, type DriveId, HoldfastError, isDriveId } from "@holdfast/contract";
import type { DriveObservation, Drives, FileAccess } from "@holdfast/engine";
import { makeDisk, mountDisk } from "./disk.ts";
import { errnoOf, isGone } from "./errno.ts";
import { isDiskFull, LaunchRefusal } from "./launch-step.ts";
import type { DrivePlaces, Layout } from "./layout.ts";
import { loopsIn } from "./loops.ts";
import type { Machine } from "./machine.ts";
import { diskMountOf, type Mount, mountsOf, readMounts } from "./mounts.ts";
import { readRecord, writeRecord } from "./record.ts";
import { unmountAll } from "./unmount.ts";

/** What a drive is. Written last: where it is, the rest was made. */
interface DriveNote {
  sizeMb: number | null;
  /** Of its directory: one that was made by somebody else is not it. */
  ino: string;
}

/**
 * Drives as directories of the state directory, each with a file system of its own where its size is limited. What is in
 * them was written by sandboxes, so nothing here opens it: it is served from a jail, measured and removed by the porter.
 */
export class OciDrives implements Drives {
  readonly #machine: Machine;

  constructor(machine: Machine) {
    this.#machine = machine;
  }

  async make({ id, sizeMb }: { id: DriveId; sizeMb: number | null }, signal: AbortSignal): Promise<void> {
    const { layout, porter } = this.#machine;
    const places = layout.drive(id);
    if (readNote(places) !== null) return this.open(id, signal);
    // Half of one that was begun: nobody has seen it, so nothing is in it.
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
    writeRecord(places.note, { sizeMb, ino: String(ino) } satisfies DriveNote);
    const directory = await open(places.dir, "r");
    await directory.sync().finally(() => directory.close());
  }

  async open(id: DriveId, signal: AbortSignal): Promise<void> {
    signal.throwIfAborted();
    const places = this.#machine.layout.drive(id);
    const note = readNote(places);
    if (note === null) throw new Error("its files are not there");
    if (note.sizeMb !== null && !(await mountDisk(this.#machine, places)))
      throw new Error("its file system is not there");
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
    const { layout, porter, idBase, idCount } = this.#machine;
    const jail = await porter.openJail(dataIn(layout.drive(id)), { idBase, idCount }, signal);
    return { files: jail, close: () => jail.close() };
  }

  /** Its file goes first, so that nobody mounts it again; then all else, and then everything is looked at again. */
  async destroy(id: DriveId, signal: AbortSignal): Promise<void> {
    signal.throwIfAborted();
    const { layout, porter } = this.#machine;
    const places = layout.drive(id);
    rmSync(places.note, { force: true });
    rmSync(places.diskImage, { force: true });
    await unmountAll(this.#machine, places, signal);
    await porter.removeTree(places.dir);
    const left = leftoversOf(places, readMounts());
    if (left.length > 0) throw new Error(`still there after removal: ${left.join(", ")}`);
  }

  async list(_signal: AbortSignal): Promise<DriveId[]> {
    return readdirSync(this.#machine.layout.drives).filter(isDriveId);
  }
}

/** Where its files are: in its own file system where it has one. */
export const dataIn = ({ dir, disk }: DrivePlaces): string => join(existsSync(disk) ? disk : dir, "data");

function readNote({ note }: DrivePlaces): DriveNote | null {
  const record = readRecord(note) as Partial<DriveNote> | null | "unreadable";
  if (record === null) return null;
  if (record === "unreadable" || typeof record.ino !== "string") throw new Error("its note can't be read");
  return { sizeMb: record.sizeMb ?? null, ino: record.ino };
}

/** What keeps a drive from being the one that was made; null where nothing does. */
export function driveProblem(layout: Layout, id: DriveId, mounts: readonly Mount[]): Cause | null {
  const places = layout.drive(id);
  const note = readNote(places);
  if (note === null) return { code: "drive_gone", message: "the drive's files are not there" };
  return problemOf(places, note, mounts);
}

function problemOf(places: DrivePlaces, note: DriveNote, mounts: readonly Mount[]): Cause | null {
  if (note.sizeMb !== null) {
    const state = diskMountOf(mounts, places);
    if (state === "missing")
      return { code: "drive_unmounted", message: "the drive's own file system is not mounted on the host" };
    if (state === "failed")
      return { code: "drive_failed", message: "the drive's own file system can't be written to any more" };
  }
  try {
    const { ino } = lstatSync(dataIn(places), { bigint: true });
    if (String(ino) === note.ino) return null;
    return { code: "drive_replaced", message: "another directory is in the place of the drive's" };
  } catch (error) {
    if (isGone(error)) return { code: "drive_gone", message: "the drive's directory is not there" };
    throw error;
  }
}

/** What is there of a drive, in words for people. */
const leftoversOf = ({ dir, marker }: DrivePlaces, mounts: readonly Mount[]): string[] => [
  ...mountsOf(mounts, [dir], marker).map(() => "mount"),
  ...loopsIn(dir).map(() => "loop device"),
  ...(existsSync(dir) ? ["directory"] : []),
];
