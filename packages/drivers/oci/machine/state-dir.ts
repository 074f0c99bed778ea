import { existsSync, mkdirSync, realpathSync } from "node:fs";
import { basename, dirname, join, resolve } from "node:path";
import { HoldfastError } from "@holdfast/contract";

/** Makes the state directory where it is missing and gives its real path. `shown` is what sandboxes see of the host. */
export function openStateDir(path: string, shown: readonly string[]): string {
  const stateDir = requireUnseen(path, shown);
  mkdirSync(stateDir, { recursive: true });
  return stateDir;
}

/** Where a path leads, whether or not its end is there yet. */
function realPathOf(path: string): string {
  const absolute = resolve(path);
  if (existsSync(absolute)) return realpathSync(absolute);
  return join(realPathOf(dirname(absolute)), basename(absolute));
}

/** The state directory holds the keys and every sandbox's files: no sandbox may be shown it. Gives its real path. */
export function requireUnseen(path: string, shown: readonly string[]): string {
  const stateDir = realPathOf(path);
  const above = shown.find((dir) => stateDir === dir || stateDir.startsWith(`${dir}/`));
  if (above === undefined) return stateDir;
  throw new HoldfastError("invalid_request", {
    message: `The state directory can't lie below ${above}: every sandbox of the image 'host' can see what is there. Choose another, such as /var/lib/holdfast.`,
  });
}
