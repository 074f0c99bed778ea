import { readFileSync } from "node:fs";

export interface Mount {
  id: number;
  /** Id of the mount that contains the mount point. */
  parent: number;
  mountPoint: string;
  /** The mounted directory of the file system, as a path within that file system; "/" if all of it is mounted. */
  root: string;
  fsType: string;
  source: string;
  superOptions: string[];
  /** Whether mounts and unmounts below this mount propagate to other mounts. */
  isShared: boolean;
  /** Whether mounts and unmounts below another mount propagate to this mount. */
  isSlave: boolean;
}

const ESCAPED = /\\([0-7]{3})/g;

const unescaped = (text: string): string =>
  text.includes("\\")
    ? text.replaceAll(ESCAPED, (_, octal: string) => String.fromCharCode(Number.parseInt(octal, 8)))
    : text;

/** Parses /proc/PID/mountinfo. The mounts stay in the file's order: earlier mounts come first. */
export function parseMounts(mountinfo: string): Mount[] {
  const mounts: Mount[] = [];
  for (const line of mountinfo.split("\n")) {
    const [before, after] = line.split(" - ", 2);
    const [id, parent, , root, mountPoint] = before?.split(" ", 5) ?? [];
    const [fsType, source, superOptions] = after?.split(" ") ?? [];
    if (root === undefined || mountPoint === undefined || fsType === undefined) continue;
    mounts.push({
      id: Number(id),
      parent: Number(parent),
      mountPoint: unescaped(mountPoint),
      root: unescaped(root),
      fsType,
      source: unescaped(source ?? ""),
      superOptions: (superOptions ?? "").split(","),
      // " shared:" can only be a field of the line, not a part of a path, because the kernel escapes the spaces in
      // paths.
      isShared: before?.includes(" shared:") ?? false,
      isSlave: before?.includes(" master:") ?? false,
    });
  }
  return mounts;
}

export const readMounts = (): Mount[] => parseMounts(readFileSync("/proc/self/mountinfo", "utf8"));

/** Caches, for each mount table, the topmost mount at every mount point. */
const tops = new WeakMap<readonly Mount[], ReadonlyMap<string, Mount>>();

/** Finds the topmost mount at a path. The index of a table is built once and cached for later lookups. */
export function topAt(mounts: readonly Mount[], path: string): Mount | undefined {
  let top = tops.get(mounts);
  if (top === undefined) {
    top = new Map(mounts.map((mount) => [mount.mountPoint, mount]));
    tops.set(mounts, top);
  }
  return top.get(path);
}

/** Whether any mount propagates mounts and unmounts to other mounts. */
export const sharesMounts = (mounts: readonly Mount[]): boolean => mounts.some(({ isShared }) => isShared);

/**
 * Whether any mount propagates mounts, or receives propagated mounts. CRIU can't restore bind mounts of host files that
 * do either.
 */
export const isPropagating = (mounts: readonly Mount[]): boolean =>
  mounts.some(({ isShared, isSlave }) => isShared || isSlave);

const contains = (dir: string, path: string): boolean =>
  dir === "/" || path === dir || path.startsWith(`${dir}/`);

/** Returns the mount whose file system contains the path, according to the mount table. */
export function mountOf(mounts: readonly Mount[], path: string): Mount | undefined {
  const longest = mounts
    .filter(({ mountPoint }) => contains(mountPoint, path))
    .reduce((most, { mountPoint }) => Math.max(most, mountPoint.length), 0);
  return mounts.findLast(({ mountPoint }) => mountPoint.length === longest && contains(mountPoint, path));
}

/**
 * Whether a process that opens the mount point finds the root of this mount there. It does not if another mount covers
 * this one, at the same path or at a directory above it.
 */
export function isVisible(mounts: readonly Mount[], mount: Mount): boolean {
  const isCovered = mounts.some(
    ({ parent, mountPoint }) => parent === mount.id && mountPoint === mount.mountPoint,
  );
  return !isCovered && isReachable(mounts, mount);
}

function isReachable(mounts: readonly Mount[], mount: Mount): boolean {
  const index = mounts.indexOf(mount);
  const isShadowed = mounts.some(
    (other, at) =>
      other !== mount &&
      other.parent === mount.parent &&
      contains(other.mountPoint, mount.mountPoint) &&
      (other.mountPoint !== mount.mountPoint || at > index),
  );
  if (isShadowed) return false;
  const above = mounts.find(({ id }) => id === mount.parent && id !== mount.id);
  return above === undefined || isReachable(mounts, above);
}

interface RootPlaces {
  root: string;
  marker: string;
}

/** The topmost mount at the sandbox's root, if that is the sandbox's own overlay. */
export function rootMount(mounts: readonly Mount[], { root, marker }: RootPlaces): Mount | null {
  const top = topAt(mounts, root);
  return top?.fsType === "overlay" && top.source === marker ? top : null;
}

export const isRootMounted = (mounts: readonly Mount[], places: RootPlaces): boolean =>
  rootMount(mounts, places) !== null;

/** State of the mount of a sandbox's or drive's own disk: "failed" if the kernel no longer writes to the disk. */
export function diskMountOf(
  mounts: readonly Mount[],
  { disk }: { disk: string },
): "mounted" | "failed" | "missing" {
  const top = topAt(mounts, disk);
  if (top?.fsType !== "ext4") return "missing";
  return isWritable(top) ? "mounted" : "failed";
}

/** Whether the kernel still writes to the mount's file system. */
export const isWritable = ({ superOptions }: Mount): boolean =>
  !superOptions.some((option) => UNWRITABLE_OPTIONS.includes(option));

/** Mount options that ext4 shows after it stopped writing because of an error. */
const UNWRITABLE_OPTIONS = ["ro", "emergency_ro", "shutdown"];

/** Mounts at or below the given directories, plus mounts anywhere with the given marker; newest first. */
export function mountsOf(mounts: readonly Mount[], dirs: readonly string[], marker?: string): Mount[] {
  const within = (path: string) => dirs.some((dir) => path === dir || path.startsWith(`${dir}/`));
  return mounts.filter((mount) => within(mount.mountPoint) || mount.source === marker).reverse();
}
