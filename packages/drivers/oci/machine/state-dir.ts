import { existsSync, mkdirSync, realpathSync } from "node:fs";
import { basename, dirname, join, resolve } from "node:path";
import { HoldfastError } from "@holdfast/contract";

/**
 * Creates the state directory if it is missing. Returns its real path. `shown` lists host directories that sandboxes
 * see.
 */
export function openStateDir(path: string, shown: readonly string[]): string {
  const stateDir = requireUnseen(path, shown);
  mkdirSync(stateDir, { recursive: true });
  return stateDir;
}

/** Resolves symbolic links in a path, even if its last components do not exist yet. */
function realPathOf(path: string): string {
  const absolute = resolve(path);
  if (existsSync(absolute)) return realpathSync(absolute);
  return join(realPathOf(dirname(absolute)), basename(absolute));
}

/**
 * Refuses a state directory that sandboxes could see, because it contains the keys and every sandbox's files. Returns
 * its real path.
 */
export function requireUnseen(path: string, shown: readonly string[]): string {
  const stateDir = realPathOf(path);
  const above = shown.find((dir) => stateDir === dir || stateDir.startsWith(`${dir}/`));
  if (above === undefined) return stateDir;
  throw new HoldfastError("invalid_request", {
    message: `The state directory can't lie below ${above}: every sandbox of the image 'host' can see that directory. Choose another one, such as /var/lib/holdfast.`,
  });
}
