import type { DriveId } from "@holdfast/contract";
import { type DriveObservation, type Drives, type Identity, KeeperRefusal } from "@holdfast/engine";
import { hangs } from "./checkpoints.ts";
import type { Armed, Point } from "./faults.ts";
import type { Host } from "./host.ts";
import { never, type Process } from "./process.ts";

/** The directory of a drive, wherever it is. */
export interface DriveDirectory {
  readonly id: DriveId;
  /** Another for every directory that comes into being. */
  readonly ino: string;
  /** Whether it is a file system of its own, which every boot of the host leaves unmounted. */
  readonly isSized: boolean;
  state: "half" | "whole" | "removed";
  isOpen: boolean;
  /** Somebody took it away behind everybody's back, and may bring it back. */
  isAway: boolean;
}

/** The directory of a drive, where it belongs and with all that it should have; null where it is not. */
export function driveOn(host: Host, id: DriveId): DriveDirectory | null {
  const drive = host.drives.get(id);
  return drive?.state === "whole" && drive.isOpen && !drive.isAway ? drive : null;
}

/** Of one of its directories, from inside and outside. */
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

/** The drives of the one host, on behalf of one server. What it is in the middle of ends with the server. */
export function drivesOf(host: Host, process: Process): Drives {
  const verb = <Answer>(
    point: Point,
    signal: AbortSignal,
    act: (fault: Armed | null, pause: (ms: number) => Promise<void>) => Promise<Answer>,
  ): Promise<Answer> => {
    if (!process.asks()) return never();
    const pause = async (ms: number) => {
      if (ms > 0) await host.time.pause(ms, signal);
      if (!process.alive) await never();
    };
    return process.hears(
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
        if (fault?.kind === "make-half") throw new Error("the file system could not be made");
        if (fault?.kind === "make-hangs" && fault.flag) return hangs(signal);
        process.effect("makes a drive", () => {
          if (drive.state === "half") drive.state = "whole";
          drive.isOpen = true;
        });
        if (fault?.kind === "make-hangs") return hangs(signal);
        if (fault?.kind === "make-answer-lost") throw new Error("it could not be told that it is made");
      }),
    open: (id, signal) =>
      verb("drive.open", signal, async (fault) => {
        if (fault !== null) throw new Error("the file system could not be mounted");
        const drive = host.drives.get(id);
        if (drive !== undefined && !drive.isAway) drive.isOpen = true;
      }),
    observe: (ids, signal) =>
      verb("drive.observe", signal, async (fault) => {
        if (fault !== null) host.tell({ type: "drives-unseen" });
        if (fault?.kind === "drives-observe-fails") throw new Error("the drives could not be looked at");
        if (fault?.kind === "drives-observe-hangs") return hangs(signal);
        const unknown: DriveObservation = { seen: "unknown", at: host.time.now(), why: "EIO" };
        return new Map(ids.map((id) => [id, fault === null ? seen(host, id) : unknown]));
      }),
    usage: (id, signal) =>
      verb("drive.usage", signal, async (fault) => {
        if (fault !== null) return hangs(signal);
        if (driveOn(host, id) === null) throw new Error("it is not there");
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

/** What was taken away is not there to be removed. */
function remove(host: Host, id: DriveId, isHalf: boolean): void {
  const drive = host.drives.get(id);
  if (drive === undefined || drive.isAway) return;
  host.tell({ type: "drive-removed", id });
  drive.state = isHalf ? "half" : "removed";
  if (!isHalf) host.drives.delete(id);
}
