/** The porter's requests and results about mounts of drives. */
import type { Identity } from "@holdfast/engine";
import { PorterError } from "./spawner.ts";

export interface MountInto {
  /** Pid of PID 1 of the instance, as the host sees it. The process is used only if its start time matches. */
  pid: number;
  startTime: string;
  /** A directory of the host. */
  source: string;
  /**
   * Path within `source` of the directory that is mounted; "/" for `source` itself. Symbolic links are not followed.
   */
  subpath: string;
  /** Mount point inside the instance. Missing directories are created. Symbolic links on the path are not followed. */
  target: string;
  readOnly: boolean;
  /**
   * Directories of `subpath` that are missing are created with this number as host uid and gid. If null, none are
   * created.
   */
  sourceOwner: number | null;
  /** Directories of `target` that are missing are created with this number as host uid and gid. */
  targetOwner: number;
}

export interface StageOrder {
  source: string;
  subpath: string;
  /** An existing directory of the host. */
  target: string;
  readOnly: boolean;
  sourceOwner: number | null;
}

/** The owner (in host ids) and mode that a directory had before something was mounted over it. */
export interface MountPointBefore {
  uid: number;
  gid: number;
  mode: number;
}

const REFUSALS = ["symlink", "not_directory", "occupied", "read_only", "source_missing"] as const;

/** Why a mount was refused: the porter found a state that does not allow it. The message contains no host path. */
export interface MountRefusal {
  refused: (typeof REFUSALS)[number];
  message: string;
}

/**
 * `before` is null if the directory under the mount was already sealed. "gone" means that the instance no longer
 * exists.
 */
export type MountedInto = { mounted: Identity; before: MountPointBefore | null } | MountRefusal | "gone";

export interface DriveUsage {
  bytes: number;
  files: number;
}

const BEFORE = "(?:-|(?<uid>\\d+) (?<gid>\\d+) (?<mode>\\d+))";
const MOUNTED = new RegExp(`^mounted (?<dev>\\d+) (?<ino>\\d+) ${BEFORE}\\n$`);
const STAGED = /^staged (?<dev>\d+) (?<ino>\d+)\n$/;
const USAGE = /^(?<bytes>\d+) (?<files>\d+)\n$/;
const REFUSED = new RegExp(`^(?<refused>${REFUSALS.join("|")}) (?<message>.+)\\n$`);

type Fields = Record<string, string | undefined>;

function matched(form: RegExp, output: string): Fields {
  const fields = form.exec(output)?.groups;
  if (fields === undefined) throw new PorterError("unexpected output from the porter", null);
  return fields;
}

const identity = ({ dev = "", ino = "" }: Fields): Identity => ({ dev, ino });

const before = ({ uid, gid, mode }: Fields): MountPointBefore | null =>
  uid === undefined ? null : { uid: Number(uid), gid: Number(gid), mode: Number(mode) };

export function readMounted(output: string): MountedInto {
  const fields = matched(MOUNTED, output);
  return { mounted: identity(fields), before: before(fields) };
}

export const readStaged = (output: string): { staged: Identity } => ({
  staged: identity(matched(STAGED, output)),
});

export function readUsage(output: string): DriveUsage {
  const { bytes, files } = matched(USAGE, output);
  return { bytes: Number(bytes), files: Number(files) };
}

export function readRefused(output: string): MountRefusal {
  const { refused, message = "" } = matched(REFUSED, output);
  return { refused: refused as MountRefusal["refused"], message };
}
