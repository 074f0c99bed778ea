import { FILE_KINDS, type FileChange } from "@holdfast/contract";
import type { Stat, WriteOptions } from "@holdfast/engine";
import { type Ask, ask, nothing, oneOf } from "./ask.ts";
import { REQUEST } from "./protocol.ts";
import { type Reader, WireError } from "./wire.ts";

/** Where a request leaves a mode or an owner to the other side. */
const UNSET = 0xffff_ffff;
const DIRECTORY_MODE = 0o755;
/** A directory entry with empty strings. */
const SMALLEST_ENTRY = 53;
const CHANGE_KINDS: readonly FileChange["kind"][] = ["created", "modified", "removed", "overflow"];
/** A change of what is watched itself. */
const SMALLEST_CHANGE = 6;

export function readStat(from: Reader): Stat {
  return {
    kind: oneOf(FILE_KINDS, from.u8(), "kind of file"),
    sizeBytes: from.u64(),
    mode: from.u32(),
    uid: from.u32(),
    gid: from.u32(),
    modifiedAt: from.u64(),
    dev: from.name64(),
    ino: from.name64(),
    target: from.str(),
  };
}

export const statFile = (path: string, follow: boolean): Ask<Stat> =>
  ask(
    REQUEST.fileStat,
    (out) => {
      out.str(path);
      out.flag(follow);
    },
    readStat,
  );

export const openFile = (path: string): Ask<{ handle: number; stat: Stat }> =>
  ask(
    REQUEST.fileOpen,
    (out) => out.str(path),
    (from) => ({ handle: from.u32(), stat: readStat(from) }),
  );

export const readFile = (handle: number, offset: number, length: number): Ask<Uint8Array> =>
  ask(
    REQUEST.fileRead,
    (out) => {
      out.u32(handle);
      out.u64(offset);
      out.u32(length);
    },
    (from) => {
      const data = from.bytes();
      if (data.length > length) throw new WireError("more was read than was asked for");
      return data;
    },
  );

export const createFile = (path: string, options: WriteOptions): Ask<{ handle: number }> =>
  ask(
    REQUEST.fileCreate,
    (out) => {
      out.str(path);
      out.u32(options.mode ?? UNSET);
      out.flag(options.parents ?? false);
      out.u32(options.uid ?? UNSET);
      out.u32(options.gid ?? UNSET);
    },
    (from) => ({ handle: from.u32() }),
  );

/** Answers with the size that the file has then. */
export const writeFile = (handle: number, data: readonly Uint8Array[]): Ask<number> =>
  ask(
    REQUEST.fileWrite,
    (out) => {
      out.u32(handle);
      out.data(data);
    },
    (from) => from.u64(),
  );

export const commitFile = (handle: number): Ask<Stat> =>
  ask(REQUEST.fileCommit, (out) => out.u32(handle), readStat);

export const closeHandle = (handle: number): Ask<void> =>
  ask(REQUEST.fileClose, (out) => out.u32(handle), nothing, "urgent");

export const openDirectory = (path: string): Ask<{ handle: number }> =>
  ask(
    REQUEST.dirOpen,
    (out) => out.str(path),
    (from) => ({ handle: from.u32() }),
  );

export interface Entry {
  name: string;
  stat: Stat;
}

export const readDirectory = (handle: number, max: number): Ask<{ entries: Entry[]; done: boolean }> =>
  ask(
    REQUEST.dirRead,
    (out) => {
      out.u32(handle);
      out.u32(max);
    },
    (from) => {
      const entries: Entry[] = [];
      for (let count = from.count(SMALLEST_ENTRY); count > 0; count--) {
        entries.push({ name: readName(from), stat: readStat(from) });
      }
      const done = from.flag();
      if (entries.length > max || (entries.length === 0 && !done))
        throw new WireError("a listing out of step");
      return { entries, done };
    },
  );

/** A name that is joined to a path must not be able to lead out of it. */
function checkedName(name: string): string {
  if (name === "" || name === "." || name === ".." || name.includes("/")) {
    throw new WireError("a directory entry whose name is none");
  }
  return name;
}

const readName = (from: Reader): string => checkedName(from.str());

export const makeDirectory = (path: string, options: WriteOptions): Ask<void> =>
  ask(
    REQUEST.mkdir,
    (out) => {
      out.str(path);
      out.u32(options.mode ?? DIRECTORY_MODE);
      out.flag(options.parents ?? false);
      out.u32(options.uid ?? UNSET);
      out.u32(options.gid ?? UNSET);
    },
    nothing,
  );

export const removePath = (path: string, recursive: boolean): Ask<void> =>
  ask(
    REQUEST.remove,
    (out) => {
      out.str(path);
      out.flag(recursive);
    },
    nothing,
  );

export const renamePath = (from: string, to: string, overwrite: boolean): Ask<void> =>
  ask(
    REQUEST.rename,
    (out) => {
      out.str(from);
      out.str(to);
      out.flag(overwrite);
    },
    nothing,
  );

export const changeMode = (path: string, mode: number): Ask<void> =>
  ask(
    REQUEST.chmod,
    (out) => {
      out.str(path);
      out.u32(mode);
    },
    nothing,
  );

export interface Owner {
  uid: number;
  gid: number;
}

export const changeOwner = (path: string, owner: Owner): Ask<void> =>
  ask(
    REQUEST.chown,
    (out) => {
      out.str(path);
      out.u32(owner.uid);
      out.u32(owner.gid);
    },
    nothing,
  );

export const makeSymlink = (path: string, target: string, owner: Partial<Owner>): Ask<void> =>
  ask(
    REQUEST.symlink,
    (out) => {
      out.str(target);
      out.str(path);
      out.u32(owner.uid ?? UNSET);
      out.u32(owner.gid ?? UNSET);
    },
    nothing,
  );

export const makeHardlink = (existing: string, path: string): Ask<void> =>
  ask(
    REQUEST.hardlink,
    (out) => {
      out.str(existing);
      out.str(path);
    },
    nothing,
  );

export const changeTime = (path: string, modifiedAt: number): Ask<void> =>
  ask(
    REQUEST.utimes,
    (out) => {
      out.str(path);
      out.u64(modifiedAt);
    },
    nothing,
  );

export const openWatch = (path: string, recursive: boolean): Ask<{ watch: number }> =>
  ask(
    REQUEST.watch,
    (out) => {
      out.str(path);
      out.flag(recursive);
    },
    (from) => ({ watch: from.u32() }),
  );

/** A change, by its path from what is watched; an empty one is that itself. */
export interface Change {
  kind: FileChange["kind"];
  directory: boolean;
  relative: string;
}

export interface WatchSlice {
  /** Whether there can be any more. */
  more: boolean;
  changes: Change[];
}

/** Answered when there is something, or with nothing after the wait. */
export const readWatch = (watch: number, order: { max: number; waitMs: number }): Ask<WatchSlice> =>
  ask(
    REQUEST.watchRead,
    (out) => {
      out.u32(watch);
      out.u32(order.max);
      out.u32(order.waitMs);
    },
    (from) => {
      const more = from.flag();
      const changes: Change[] = [];
      for (let count = from.count(SMALLEST_CHANGE); count > 0; count--) changes.push(readChange(from));
      if (changes.length > order.max) throw new WireError("more changes than were asked for");
      return { more, changes };
    },
    "patient",
  );

function readChange(from: Reader): Change {
  const kind = oneOf(CHANGE_KINDS, from.u8(), "kind of change");
  const directory = from.flag();
  const relative = from.str();
  if (relative !== "") relative.split("/").forEach(checkedName);
  return { kind, directory, relative };
}

export const endWatch = (watch: number): Ask<void> =>
  ask(REQUEST.watchEnd, (out) => out.u32(watch), nothing, "urgent");
