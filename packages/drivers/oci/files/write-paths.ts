import { existsSync, lstatSync, statSync } from "node:fs";
import { basename } from "node:path";
import type { Cause, SandboxId } from "@holdfast/contract";
import type { Identity } from "@holdfast/engine";
import type { SandboxPlaces } from "../machine/layout.ts";
import type { Machine } from "../machine/machine.ts";
import { readInstance, type WritePaths, writeInstance } from "../machine/sandbox-notes.ts";
import { errnoOf } from "../proc/errno.ts";
import { diskMountOf, readMounts } from "../proc/mount-table.ts";
import { hasListener } from "../proc/proc-files.ts";

type Name = keyof WritePaths;

/**
 * The host path for each name, and the function that reads its stat: `statSync` follows a symbolic link in the last
 * component, `lstatSync` does not. Only symbolic links that Holdfast made are followed: those from a sandbox's
 * directory to its own disk.
 */
const PATHS: Record<Name, { of: (places: SandboxPlaces) => string; stat: typeof statSync }> = {
  upper: { of: ({ upper }) => upper, stat: statSync },
  // Holdfast makes the directory `work`, and the kernel makes `work/work` and works in it. If either directory is
  // moved, the path `work/work` no longer refers to the original directory. So this path is compared.
  work: { of: ({ work }) => `${work}/work`, stat: statSync },
  control: { of: ({ control }) => control, stat: statSync },
  journals: { of: ({ journals }) => journals, stat: lstatSync },
  diskImage: { of: ({ diskImage }) => diskImage, stat: lstatSync },
};

const CODES: Record<Name, { code: string; what: string; consequence: string }> = {
  upper: {
    code: "files_gone",
    what: "the directory of its files",
    consequence:
      "Its files can't be written, and a restart can't bring them back: put the directory back if it was moved",
  },
  work: {
    code: "files_gone",
    what: "the work directory of its root file system",
    consequence:
      "Its files can't be written, and a restart can't bring the directory back: put it back if it was moved",
  },
  diskImage: {
    code: "disk_gone",
    what: "the image file of its own disk",
    consequence:
      "Its files are lost when its instance ends: copy them out, or put the image file back if it was moved",
  },
  control: {
    code: "control_gone",
    what: "its control directory",
    consequence:
      "Its keeper can't be reached again, and a restart can't bring the directory back: put it back if it was moved",
  },
  journals: {
    code: "journals_gone",
    what: "the directory of its journals",
    consequence: "No command can start",
  },
};

/** The cause that is reported if the whole directory of a sandbox is missing, and with it the instance note. */
export const DIRECTORY_LOST: Cause = {
  code: "files_gone",
  message:
    "the directory of the sandbox was removed or moved on the host. A restart can't bring it back: put it back if it was moved.",
};

/**
 * Returns a cause if the keeper's socket is missing or replaced. The keeper creates its socket only when it starts. An
 * open link keeps working without the socket, but connections to ports fail, and the next server can't open a link.
 * Returns no cause if the keeper has just started and has not created its socket yet.
 */
function lostSocket({ socket }: SandboxPlaces, keeperPid: number): Cause | null {
  const found = lstatSync(socket, { throwIfNoEntry: false });
  if (found?.isSocket() === true || !hasListener(keeperPid, basename(socket))) return null;
  const fate = found === undefined ? "was removed or moved" : "was replaced by another file";
  const message = `the socket of its keeper ${fate} on the host. Its ports and a later server can't reach the keeper; a restart creates the socket again.`;
  return { code: "socket_gone", message };
}

/** Paths that are on the sandbox's own disk, if it has one. */
const ON_DISK = new Set<Name>(["upper", "work", "control", "journals"]);

/** Reads the identity of every path that a running instance writes to. Null stands for a path that does not exist. */
export function readWritePaths(places: SandboxPlaces): WritePaths {
  const read = (name: Name): Identity | null => {
    const { of, stat } = PATHS[name];
    const found = stat(of(places), { bigint: true, throwIfNoEntry: false });
    return found === undefined ? null : { dev: String(found.dev), ino: String(found.ino) };
  };
  return {
    upper: read("upper"),
    work: read("work"),
    control: read("control"),
    journals: read("journals"),
    diskImage: readImage(places),
  };
}

/**
 * Reads the identity and the size of the image file. The size is needed because a truncated file has lost content but
 * still has the same identity.
 */
function readImage({ diskImage }: SandboxPlaces): WritePaths["diskImage"] {
  const found = lstatSync(diskImage, { bigint: true, throwIfNoEntry: false });
  if (found === undefined) return null;
  return { dev: String(found.dev), ino: String(found.ino), size: Number(found.size) };
}

/**
 * Stands for a required path that was missing when the paths were read. No path on disk has this identity, so later
 * observations report the path as lost.
 */
const MISSING: Identity = { dev: "0", ino: "0" };

/**
 * Completes the note of an instance that an earlier version of Holdfast launched: adds the current identities of the
 * paths that the instance writes to. Later observations compare the paths with these identities. If the note can't be
 * written, for example on a full disk, later observations can't compare the paths.
 */
export function noteWritePaths({ layout, log }: Pick<Machine, "layout" | "log">, id: SandboxId): void {
  const note = readInstance(layout, id);
  if (note === null || note.writePaths !== undefined) return;
  const places = layout.sandbox(id);
  const hasDisk = existsSync(places.disk);
  // While the sandbox's own disk is not mounted, the paths on it are not missing: the disk will be mounted again.
  if (hasDisk && diskMountOf(readMounts(), places) !== "mounted") return;
  const found = readWritePaths(places);
  const writePaths = {
    ...found,
    upper: found.upper ?? MISSING,
    control: found.control ?? MISSING,
    diskImage: found.diskImage ?? (hasDisk ? MISSING : null),
  };
  try {
    writeInstance(layout, { ...note, writePaths });
  } catch (error) {
    log.warn(
      { sandboxId: id, errno: errnoOf(error) },
      "the paths of a recovered instance could not be noted",
    );
  }
}

/**
 * Names the paths that no longer refer to the files that the instance was launched with. A running instance keeps its
 * open files, so it looks healthy from inside. But nothing can be created in a removed directory, and the next instance
 * would not find the data in a moved one. A path that did not exist at the launch is not compared. Paths on the
 * sandbox's own disk are compared only if `isDiskUsable` is set.
 */
export function lostWritePaths(
  places: SandboxPlaces,
  launched: WritePaths,
  { isDiskUsable, keeperPid }: { isDiskUsable: boolean; keeperPid: number },
): Cause[] {
  const lost: Cause[] = [];
  const check = (name: Name): boolean => {
    const expected = launched[name];
    if (expected === null || (!isDiskUsable && ON_DISK.has(name))) return true;
    const { of, stat } = PATHS[name];
    const found = stat(of(places), { throwIfNoEntry: false });
    const isOther =
      found === undefined || found.ino !== Number(expected.ino) || found.dev !== Number(expected.dev);
    const hasOtherSize = "size" in expected && expected.size !== found?.size;
    if (!isOther && !hasOtherSize) return true;
    const { code, what, consequence } = CODES[name];
    const fate =
      found === undefined
        ? "was removed or moved"
        : isOther
          ? "was replaced by another one"
          : "no longer has its size and was overwritten or cut";
    lost.push({ code, message: `${what} ${fate} on the host. ${consequence}.` });
    return false;
  };
  // The most serious loss is reported first. `work` is not reported if `upper` is lost, and `journals` is not reported
  // if `control`, which contains it, is lost.
  if (check("upper")) check("work");
  check("diskImage");
  let hasControl = true;
  if (launched.journals === null) hasControl = check("control");
  else if (!check("journals")) {
    const journals = lost.pop();
    hasControl = check("control");
    if (hasControl && journals !== undefined) lost.push(journals);
  }
  const socket = hasControl && isDiskUsable ? lostSocket(places, keeperPid) : null;
  if (socket !== null) lost.push(socket);
  return lost;
}
