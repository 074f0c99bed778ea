import { FILE_KINDS, type FileChange } from "@holdfast/contract";
import type { Stat, WriteOptions } from "@holdfast/engine";
import { REQUEST } from "./protocol.ts";
import { nothing, oneOf, type RequestSpec, request } from "./request.ts";
import { type Reader, WireError } from "./wire.ts";

/** Value of a mode, uid or gid field that a request leaves unset, so that the peer chooses the value. */
const UNSET = 0xffff_ffff;
const DIRECTORY_MODE = 0o755;
/** Minimum size of an encoded directory entry, in which all strings are empty. */
const SMALLEST_ENTRY = 53;
const CHANGE_KINDS: readonly FileChange["kind"][] = ["created", "modified", "removed", "overflow"];
/** Minimum size of an encoded change, in which the relative path is empty. */
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

export const statFile = (path: string, follow: boolean): RequestSpec<Stat> =>
  request(
    REQUEST.fileStat,
    (out) => {
      out.str(path);
      out.flag(follow);
    },
    readStat,
  );

export const openFile = (path: string): RequestSpec<{ handle: number; stat: Stat }> =>
  request(
    REQUEST.fileOpen,
    (out) => out.str(path),
    (from) => ({ handle: from.u32(), stat: readStat(from) }),
  );

export const readFile = (handle: number, offset: number, length: number): RequestSpec<Uint8Array> =>
  request(
    REQUEST.fileRead,
    (out) => {
      out.u32(handle);
      out.u64(offset);
      out.u32(length);
    },
    (from) => {
      const data = from.bytes();
      if (data.length > length) throw new WireError("more data than requested");
      return data;
    },
  );

export const createFile = (path: string, options: WriteOptions): RequestSpec<{ handle: number }> =>
  request(
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

/** Writes at the end of what was written so far. The answer is the size of the file after the write. */
export const writeFile = (handle: number, data: readonly Uint8Array[]): RequestSpec<number> =>
  request(
    REQUEST.fileWrite,
    (out) => {
      out.u32(handle);
      out.data(data);
    },
    (from) => from.u64(),
  );

export const commitFile = (handle: number): RequestSpec<Stat> =>
  request(REQUEST.fileCommit, (out) => out.u32(handle), readStat);

export const closeHandle = (handle: number): RequestSpec<void> =>
  request(REQUEST.fileClose, (out) => out.u32(handle), nothing, "urgent");

export const openDirectory = (path: string): RequestSpec<{ handle: number }> =>
  request(
    REQUEST.dirOpen,
    (out) => out.str(path),
    (from) => ({ handle: from.u32() }),
  );

export interface Entry {
  name: string;
  stat: Stat;
}

export const readDirectory = (
  handle: number,
  max: number,
): RequestSpec<{ entries: Entry[]; done: boolean }> =>
  request(
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
        throw new WireError("an inconsistent listing");
      return { entries, done };
    },
  );

/** Checks the name of a directory entry: joined to a path, it must not lead out of the directory. */
function checkedName(name: string): string {
  if (name === "" || name === "." || name === ".." || name.includes("/")) {
    throw new WireError("an invalid name of a directory entry");
  }
  return name;
}

const readName = (from: Reader): string => checkedName(from.str());

export const makeDirectory = (path: string, options: WriteOptions): RequestSpec<void> =>
  request(
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

export const removePath = (path: string, recursive: boolean): RequestSpec<void> =>
  request(
    REQUEST.remove,
    (out) => {
      out.str(path);
      out.flag(recursive);
    },
    nothing,
  );

export const renamePath = (from: string, to: string, overwrite: boolean): RequestSpec<void> =>
  request(
    REQUEST.rename,
    (out) => {
      out.str(from);
      out.str(to);
      out.flag(overwrite);
    },
    nothing,
  );

export const changeMode = (path: string, mode: number): RequestSpec<void> =>
  request(
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

export const changeOwner = (path: string, owner: Owner): RequestSpec<void> =>
  request(
    REQUEST.chown,
    (out) => {
      out.str(path);
      out.u32(owner.uid);
      out.u32(owner.gid);
    },
    nothing,
  );

export const makeSymlink = (path: string, target: string, owner: Partial<Owner>): RequestSpec<void> =>
  request(
    REQUEST.symlink,
    (out) => {
      out.str(target);
      out.str(path);
      out.u32(owner.uid ?? UNSET);
      out.u32(owner.gid ?? UNSET);
    },
    nothing,
  );

export const makeHardlink = (existing: string, path: string): RequestSpec<void> =>
  request(
    REQUEST.hardlink,
    (out) => {
      out.str(existing);
      out.str(path);
    },
    nothing,
  );

export const changeTime = (path: string, modifiedAt: number): RequestSpec<void> =>
  request(
    REQUEST.utimes,
    (out) => {
      out.str(path);
      out.u64(modifiedAt);
    },
    nothing,
  );

export const openWatch = (path: string, recursive: boolean): RequestSpec<{ watch: number }> =>
  request(
    REQUEST.watch,
    (out) => {
      out.str(path);
      out.flag(recursive);
    },
    (from) => ({ watch: from.u32() }),
  );

/**
 * A change of a file or directory. Its path is relative to the watched path; an empty path is the watched path itself.
 */
export interface Change {
  kind: FileChange["kind"];
  directory: boolean;
  relative: string;
}

interface WatchSlice {
  /** Whether the watch can report further changes. */
  more: boolean;
  changes: Change[];
}

/** Reads changes. If there are none, the answer waits for the first change, at most `waitMs`, and is then empty. */
export const readWatch = (watch: number, order: { max: number; waitMs: number }): RequestSpec<WatchSlice> =>
  request(
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
      if (changes.length > order.max) throw new WireError("more changes than requested");
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

export const endWatch = (watch: number): RequestSpec<void> =>
  request(REQUEST.watchEnd, (out) => out.u32(watch), nothing, "urgent");
