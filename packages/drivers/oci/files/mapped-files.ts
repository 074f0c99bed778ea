import { readFileSync, statSync } from "node:fs";
import type { MappedFile } from "../machine/manifest.ts";
import { errnoOf, isGone } from "../proc/errno.ts";

const MAX_FILES = 20_000;

/** Parses /proc/PID/maps. Returns the paths of the files that the process has mapped. */
export function parseMapped(maps: string): string[] {
  const paths = maps.split("\n").map((line) => /^\S+ \S+ \S+ \S+ \d+ +(\/.*)$/.exec(line)?.[1]);
  return [...new Set(paths.filter((path) => path !== undefined))];
}

/**
 * Lists the files in the given host directories that the processes have mapped. A dump does not contain the pages of
 * such files: a restore maps the files again, so they must not change between dump and restore.
 */
export function readMapped(pids: readonly number[], dirs: readonly string[]): MappedFile[] {
  const paths = new Set(pids.flatMap((pid) => parseMapped(readMaps(pid))));
  const shown = [...paths].filter((path) => dirs.some((dir) => path.startsWith(`${dir}/`)));
  return shown
    .slice(0, MAX_FILES)
    .map((path) => describe(path))
    .filter((file) => file !== null);
}

/** Returns the paths of files that have changed or no longer exist. */
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
