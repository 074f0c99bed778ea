import { readFileSync } from "node:fs";

export interface Mount {
  mountPoint: string;
  /** The part of the file system that is mounted, as a path in it. */
  root: string;
  fsType: string;
  source: string;
  superOptions: string[];
}

const ESCAPED = /\\([0-7]{3})/g;

const unescaped = (text: string): string =>
  text.includes("\\")
    ? text.replaceAll(ESCAPED, (_, octal: string) => String.fromCharCode(Number.parseInt(octal, 8)))
    : text;

/** The lines of /proc/PID/mountinfo, in the order in which mounts were made. */
export function parseMounts(mountinfo: string): Mount[] {
  const mounts: Mount[] = [];
  for (const line of mountinfo.split("\n")) {
    const [before, after] = line.split(" - ", 2);
    const [, , , root, mountPoint] = before?.split(" ") ?? [];
    const [fsType, source, superOptions] = after?.split(" ") ?? [];
    if (root === undefined || mountPoint === undefined || fsType === undefined) continue;
    mounts.push({
      mountPoint: unescaped(mountPoint),
      root: unescaped(root),
      fsType,
      source: unescaped(source ?? ""),
      superOptions: (superOptions ?? "").split(","),
    });
  }
  return mounts;
}

export const readMounts = (): Mount[] => parseMounts(readFileSync("/proc/self/mountinfo", "utf8"));

const tops = new WeakMap<readonly Mount[], ReadonlyMap<string, Mount>>();

/** What is on top at a path. A table that is asked more than once is gone through once. */
export function topAt(mounts: readonly Mount[], path: string): Mount | undefined {
  let top = tops.get(mounts);
  if (top === undefined) {
    top = new Map(mounts.map((mount) => [mount.mountPoint, mount]));
    tops.set(mounts, top);
  }
  return top.get(path);
}

/** Whether what is on top at the sandbox's root is its own overlay. */
export function isRootMounted(
  mounts: readonly Mount[],
  { root, marker }: { root: string; marker: string },
): boolean {
  const top = topAt(mounts, root);
  return top?.fsType === "overlay" && top.source === marker;
}

/** How the sandbox's own disk is mounted: "failed" where the kernel gave up writing to it. */
export function diskMountOf(
  mounts: readonly Mount[],
  { disk }: { disk: string },
): "mounted" | "failed" | "missing" {
  const top = topAt(mounts, disk);
  if (top?.fsType !== "ext4") return "missing";
  return top.superOptions.some((option) => GIVEN_UP.includes(option)) ? "failed" : "mounted";
}

const GIVEN_UP = ["ro", "emergency_ro", "shutdown"];

/** The mounts at or below some directories, and those with a marker wherever they are; the last made first. */
export function mountsOf(mounts: readonly Mount[], dirs: readonly string[], marker?: string): Mount[] {
  const within = (path: string) => dirs.some((dir) => path === dir || path.startsWith(`${dir}/`));
  return mounts.filter((mount) => within(mount.mountPoint) || mount.source === marker).reverse();
}
