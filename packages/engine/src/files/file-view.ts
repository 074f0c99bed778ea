import { posix } from "node:path";
import { type FileStat, HoldfastError, normalisePath } from "@holdfast/contract";
import { iso } from "../lib/format.ts";
import type { Stat } from "../ports/index.ts";

/** Normalises and checks a caller's path. */
export function checkedPath(raw: string, isReserved: (path: string) => boolean): string {
  const path = normalisePath(raw);
  if (path === null)
    throw new HoldfastError("invalid_path", { message: `The path ${quoted(raw)} is not valid.` });
  if (isReserved(path)) throw new HoldfastError("forbidden_path");
  return path;
}

const QUOTED_MAX = 200;

/** Quotes text for a message, on one line and at limited length. */
export const quoted = (text: string): string => JSON.stringify(text.slice(0, QUOTED_MAX));

export function viewFile(path: string, stat: Stat): FileStat {
  return {
    path,
    name: posix.basename(path) || "/",
    kind: stat.kind,
    sizeBytes: stat.sizeBytes,
    mode: stat.mode.toString(8).padStart(4, "0"),
    uid: stat.uid,
    gid: stat.gid,
    modifiedAt: iso(Math.min(stat.modifiedAt, LATEST)),
    ...(stat.kind === "symlink" ? { target: stat.target } : {}),
  };
}

/**
 * The latest modification time that is shown. A later one is shown as this one, because a file system allows times that
 * are too large for a valid date.
 */
const LATEST = Date.UTC(9999, 11, 31, 23, 59, 59, 999);
