import { posix } from "node:path";
import { type FileAccess, KeeperRefusal } from "../ports/index.ts";

/** The kernel's limit of symbolic links in one path. */
const LINKS_MAX = 40;

interface Wanted {
  path: string;
  /** Whether the call also reads everything below the path. */
  deep?: boolean;
}

/**
 * Throws `not_on_disk` if the disk of a sandbox in standby would give a wrong answer for the path. The disk is wrong at
 * the path of a mount and below it: drives are mounted only while an instance exists, so the disk has an empty
 * directory there. If the call reads everything below the path, the disk is also wrong for a path above a mount, and
 * for the root directory, which is complete only in an instance. For any other path the disk answers correctly, even if
 * nothing exists at the path.
 */
export async function requireOnDisk(
  files: Pick<FileAccess, "stat">,
  { path, deep = false }: Wanted,
  mounts: readonly string[],
  signal: AbortSignal,
): Promise<void> {
  if (mounts.length === 0 && !deep) return;
  const place = await realPath(files, path, signal);
  if (deep && place === "/") throw notOnDisk();
  for (const mount of mounts) {
    const at = await realPath(files, mount, signal);
    if (isWithin(place, at) || (deep && isWithin(at, place))) throw notOnDisk();
  }
}

const notOnDisk = () => new KeeperRefusal("not_on_disk", "only a running sandbox has this path");

const isWithin = (path: string, directory: string): boolean =>
  directory === "/" || path === directory || path.startsWith(`${directory}/`);

/** Resolves the symbolic links of a path. Names after the first missing one are kept as they are. */
async function realPath(files: Pick<FileAccess, "stat">, path: string, signal: AbortSignal): Promise<string> {
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

/** The target of the symbolic link at the path; null if there is none. */
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
