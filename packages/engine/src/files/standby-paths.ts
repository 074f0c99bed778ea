import { posix } from "node:path";
import { type FileAccess, KeeperRefusal } from "./ports.ts";

/** As many links on one way as the kernel follows. */
const LINKS_MAX = 40;

interface Wanted {
  path: string;
  /** All that lies below it is wanted as well. */
  deep?: boolean;
}

/**
 * Refuses as `not_on_disk` what the disk of a sleeping sandbox would answer wrongly: drives are mounted in an instance only,
 * and on the disk there is an empty directory in their place. Of the root, only an instance has all. The disk itself refuses
 * the rest of what it does not have.
 */
export async function requireOnDisk(
  files: Pick<FileAccess, "stat">,
  { path, deep = false }: Wanted,
  mounts: readonly string[],
  signal: AbortSignal,
): Promise<void> {
  if (mounts.length === 0 && !deep) return;
  const place = await realPath(files, path, signal);
  if (deep && place === "/") throw elsewhere();
  for (const mount of mounts) {
    const at = await realPath(files, mount, signal);
    if (isWithin(place, at) || (deep && isWithin(at, place))) throw elsewhere();
  }
}

const elsewhere = () => new KeeperRefusal("not_on_disk", "only a running sandbox has this path");

const isWithin = (path: string, directory: string): boolean =>
  directory === "/" || path === directory || path.startsWith(`${directory}/`);

/** Where a path leads by its symbolic links. From the first name that is missing on, as it is written. */
export async function realPath(
  files: Pick<FileAccess, "stat">,
  path: string,
  signal: AbortSignal,
): Promise<string> {
  let place = "/";
  let names = namesOf(path);
  for (let links = 0; ; ) {
    const name = names.shift();
    if (name === undefined) return place;
    const next = posix.join(place, name);
    const link = name === ".." || links >= LINKS_MAX ? null : await linkAt(files, next, signal);
    if (link === null) {
      place = next;
      continue;
    }
    links += 1;
    if (link.startsWith("/")) place = "/";
    names = [...namesOf(link), ...names];
  }
}

const namesOf = (path: string): string[] => path.split("/").filter((name) => name !== "" && name !== ".");

/** What the symbolic link there says; null where there is none. */
async function linkAt(
  files: Pick<FileAccess, "stat">,
  path: string,
  signal: AbortSignal,
): Promise<string | null> {
  try {
    const { kind, target } = await files.stat(path, { follow: false }, signal);
    return kind === "symlink" ? target : null;
  } catch (error) {
    if (error instanceof KeeperRefusal && error.errno !== null) return null;
    throw error;
  }
}
