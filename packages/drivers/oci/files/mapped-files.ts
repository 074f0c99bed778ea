import { readFileSync, statSync } from "node:fs";
import { errnoOf, isGone } from "./errno.ts";

/** A file of the host that the memory of a sandbox goes with, as it was. */
export interface MappedFile {
  path: string;
  ino: string;
  size: string;
  modifiedNs: string;
}

const MAX_FILES = 20_000;

/** The paths of files in a process's memory, from /proc/PID/maps. */
export function parseMapped(maps: string): string[] {
  const paths = maps.split("\n").map((line) => /^\S+ \S+ \S+ \S+ \d+ +(\/.*)$/.exec(line)?.[1]);
  return [...new Set(paths.filter((path) => path !== undefined))];
}

/**
 * Files of these directories of the host that processes have mapped. Their memory is only half a program: the other half
 * is in these files, and comes from the host's when it is restored.
 */
export function readMapped(pids: readonly number[], dirs: readonly string[]): MappedFile[] {
  const paths = new Set(pids.flatMap((pid) => parseMapped(readMaps(pid))));
  const shown = [...paths].filter((path) => dirs.some((dir) => path.startsWith(`${dir}/`)));
  return shown
    .slice(0, MAX_FILES)
    .map((path) => describe(path))
    .filter((file) => file !== null);
}

/** Those that are not what they were. */
export const changedOf = (files: readonly MappedFile[]): string[] =>
  files
    .filter((file) => JSON.stringify(describe(file.path)) !== JSON.stringify(file))
    .map(({ path }) => path);

function describe(path: string): MappedFile | null {
  try {
    const { ino, size, mtimeNs } = statSync(path, { bigint: true });
    return { path, ino: String(ino), size: String(size), modifiedNs: String(mtimeNs) };
  } catch (error) {
    if (isGone(error) || errnoOf(error) === "ENOTDIR") return null;
    throw error;
  }
}

function readMaps(pid: number): string {
  try {
    return readFileSync(`/proc/${pid}/maps`, "utf8");
  } catch (error) {
    if (isGone(error)) return "";
    throw error;
  }
}
