/** What the porter is told about mounts of drives, and what it says of them. */
import type { Identity } from "@holdfast/engine";
import { PorterError } from "./spawner.ts";

export interface MountInto {
  /** PID 1 of the instance; reached only with this start time. */
  pid: number;
  startTime: string;
  /** A directory of the host. */
  source: string;
  /** The directory in it that is mounted, "/" for itself. No link in it is followed. */
  subpath: string;
  /** Where it appears inside; what is missing of the way is made. No link on the way is followed. */
  target: string;
  readOnly: boolean;
  /** Of the host, uid and gid: who owns what is made of the subpath, null where nothing is; and of the way to the target. */
  sourceOwner: number | null;
  targetOwner: number;
}

export interface StageOrder {
  source: string;
  subpath: string;
  /** A directory of the host that is there. */
  target: string;
  readOnly: boolean;
  sourceOwner: number | null;
}

/** A directory that is mounted over, as it was: owner by the host's ids, and mode. */
export interface MountPointBefore {
  uid: number;
  gid: number;
  mode: number;
}

const REFUSALS = ["symlink", "not_directory", "occupied", "read_only", "source_missing"] as const;

/** What was found forbids it. The message names no path of the host. */
export interface MountRefusal {
  refused: (typeof REFUSALS)[number];
  message: string;
}

/** `before` is null where the directory under the mount was sealed already. */
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
  if (fields === undefined) throw new PorterError("the porter said something else than was expected", null);
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
