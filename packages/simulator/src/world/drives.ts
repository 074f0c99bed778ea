import type { DriveId } from "@holdfast/contract";
import { type DriveDirectories, type DriveObservation, type Identity, KeeperRefusal } from "@holdfast/engine";
import type { Armed, Point } from "../schedule/armed-faults.ts";
import { hangs } from "./checkpoints.ts";
import type { Host } from "./host.ts";
import { never, type Process } from "./process.ts";

/** The directory of a drive. */
export interface DriveDirectory {
  readonly id: DriveId;
  /** Inode number, unique for every directory ever created. */
  readonly ino: string;
  /** Whether the drive has its own file system, which is unmounted after every boot of the host. */
  readonly isSized: boolean;
  state: "half" | "whole" | "removed";
  isOpen: boolean;
  /** Whether a fault has hidden the directory. The fault may bring it back later. */
  isAway: boolean;
}

/**
 * Returns the directory of a drive; null if the directory is missing or incomplete, or its own file system is not
 * mounted.
 */
export function driveOn(host: Host, id: DriveId): DriveDirectory | null {
  const drive = host.drives.get(id);
  return drive?.state === "whole" && drive.isOpen && !drive.isAway ? drive : null;
}

/** Identity of a drive's directory. It is the same inside a sandbox and on the host. */
export const identityOf = ({ ino }: DriveDirectory, subpath: string): Identity => ({
  dev: "drive",
  ino: `${ino}${subpath}`,
});

function seen(host: Host, id: DriveId): DriveObservation {
  const at = host.time.now();
  const drive = host.drives.get(id);
  if (drive === undefined || drive.isAway) return { seen: "absent", at, leftovers: [] };
  const problem =
    drive.state === "half"
      ? { code: "drive_half", message: "a part of it is missing" }
      : drive.isOpen
        ? null
        : { code: "drive_closed", message: "its file system is not mounted" };
  return { seen: "present", at, problem };
}

/** The drive operations of one server on the shared host. Operations in progress end when the server dies. */
export function drivesOf(host: Host, process: Process): DriveDirectories {
  const verb = <Answer>(
    point: Point,
    signal: AbortSignal,
    act: (fault: Armed | null, pause: (ms: number) => Promise<void>) => Promise<Answer>,
  ): Promise<Answer> => {
    if (!process.mayCall()) return never();
    const pause = async (ms: number) => {
      if (ms > 0) await host.time.pause(ms, signal);
      if (!process.alive) await never();
    };
    return process.delivers(
      (async () => {
        signal.throwIfAborted();
        const fault = host.faults.take(point);
        await pause(host.latency());
        return act(fault, pause);
      })(),
    );
  };

  return {
    make: ({ id, sizeMb }, signal) =>
      verb("drive.make", signal, async (fault, pause) => {
        if (fault?.kind === "make-fails" || host.diskIsFull) throw new Error("the disk has no room");
        const drive = host.drives.get(id) ?? begin(host, process, id, sizeMb !== null);
        await pause(host.latency());
        if (fault?.kind === "make-half") throw new Error("the file system could not be created");
        if (fault?.kind === "make-hangs" && fault.flag) return hangs(signal);
        process.effect("makes a drive", () => {
          if (drive.state === "half") drive.state = "whole";
          drive.isOpen = true;
        });
        if (fault?.kind === "make-hangs") return hangs(signal);
        if (fault?.kind === "make-answer-lost")
          throw new Error("the answer was lost after the drive was created");
      }),
    open: (id, signal) =>
      verb("drive.open", signal, async (fault) => {
        if (fault !== null) throw new Error("the file system could not be mounted");
        const drive = host.drives.get(id);
        if (drive !== undefined && !drive.isAway) drive.isOpen = true;
      }),
    observe: (ids, signal) =>
      verb("drive.observe", signal, async (fault) => {
        if (fault !== null) host.report({ type: "drives-unseen" });
        if (fault?.kind === "drives-observe-fails") throw new Error("the drives could not be observed");
        if (fault?.kind === "drives-observe-hangs") return hangs(signal);
        const unknown: DriveObservation = { seen: "unknown", at: host.time.now(), why: "EIO" };
        return new Map(ids.map((id) => [id, fault === null ? seen(host, id) : unknown]));
      }),
    usage: (id, signal) =>
      verb("drive.usage", signal, async (fault) => {
        if (fault !== null) return hangs(signal);
        if (driveOn(host, id) === null) throw new Error("the drive is missing");
        return { usedBytes: 0, freeBytes: host.capacity().diskFreeBytes };
      }),
    files: async () => {
      throw new KeeperRefusal("system", "input/output error", "EIO");
    },
    destroy: (id, signal) =>
      verb("drive.destroy", signal, async (fault, pause) => {
        if (fault?.kind === "undrive-fails") throw new Error("the drive is busy");
        if (fault?.kind === "undrive-hangs" && fault.flag) return hangs(signal);
        await pause(host.latency());
        process.effect("removes a drive", () => remove(host, id, fault?.kind === "undrive-half"));
        if (fault?.kind === "undrive-half") throw new Error("a part of the drive could not be removed");
        if (fault?.kind === "undrive-hangs") return hangs(signal);
      }),
    list: (signal) =>
      verb("drive.list", signal, async (fault) => {
        if (fault !== null) throw new Error("the drives could not be listed");
        return [...host.drives.values()].filter(({ isAway }) => !isAway).map(({ id }) => id);
      }),
  };
}

function begin(host: Host, process: Process, id: DriveId, isSized: boolean): DriveDirectory {
  return process.effect("begins a drive", () => host.makeDrive(id, { isSized, state: "half" }));
}

/** Removes a drive, completely or partly. A drive that a fault has hidden stays. */
function remove(host: Host, id: DriveId, isHalf: boolean): void {
  const drive = host.drives.get(id);
  if (drive === undefined || drive.isAway) return;
  host.report({ type: "drive-removed", id });
  drive.state = isHalf ? "half" : "removed";
  if (!isHalf) host.drives.delete(id);
}
