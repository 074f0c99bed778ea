import { readFileSync } from "node:fs";

export interface Mount {
  mountPoint: string;
  /** The part of the file system that is mounted, as a path in it. */
  root: string;
  fsType: string;
  source: string;
  superOptions: string[];
}

const unescaped = (text: string): string =>
  text.replaceAll(/\\([0-7]{3})/g, (_, octal: string) => String.fromCharCode(Number.parseInt(octal, 8)));

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

/** Whether what is on top at the sandbox's root is its own overlay. */
export function isRootMounted(
  mounts: readonly Mount[],
  { root, marker }: { root: string; marker: string },
): boolean {
  const top = mounts.findLast(({ mountPoint }) => mountPoint === root);
  return top?.fsType === "overlay" && top.source === marker;
}

/** How the sandbox's own disk is mounted: "failed" where the kernel gave up writing to it. */
export function diskMountOf(
  mounts: readonly Mount[],
  { disk }: { disk: string },
): "mounted" | "failed" | "missing" {
  const top = mounts.findLast(({ mountPoint }) => mountPoint === disk);
  if (top?.fsType !== "ext4") return "missing";
  return top.superOptions.some((option) => GIVEN_UP.includes(option)) ? "failed" : "mounted";
}

const GIVEN_UP = ["ro", "emergency_ro", "shutdown"];

/** The mounts at or below a directory, and those with a marker wherever they are; the last made first. */
export function mountsOf(mounts: readonly Mount[], dir: string, marker: string): Mount[] {
  const within = (path: string) => path === dir || path.startsWith(`${dir}/`);
  return mounts.filter((mount) => within(mount.mountPoint) || mount.source === marker).reverse();
}
