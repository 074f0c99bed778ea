import type { MountPoint } from "@holdfast/engine";
import type { BoundMount, MountSource } from "../machine/manifest.ts";
import type { Mount } from "../proc/mount-table.ts";

/**
 * A directory or file of the host that is mounted into a sandbox. `key` is the name by which CRIU's images refer to it.
 */
export interface External {
  key: string;
  /** Mount point inside the sandbox. */
  at: string;
  /** Path on the host, as CRIU sees it. */
  from: string;
}

/**
 * Mount points of file systems that no other sandbox shares: the runtime creates them for each sandbox. CRIU stores the
 * contents of these file systems with the memory.
 */
const OWN = new Set(["/", "/proc", "/dev", "/dev/pts", "/dev/shm"]);
const OWN_BELOW_PROC = ["proc", "tmpfs"];

/** Mounts that were requested for the sandbox, beyond those that every instance has. */
interface RequestedMounts {
  hostDirs: readonly string[];
  drives: readonly Pick<MountPoint, "path">[];
}

/** Selects the mounts of the host's files from the sandbox's mount table. Throws if a mount was not requested. */
export function boundMounts(mounts: readonly Mount[], requested: RequestedMounts): BoundMount[] {
  return mounts.flatMap((mount) => {
    const source = sourceOf(mount, requested);
    if (source === "stray") throw new Error(`a mount that was not requested is at ${mount.mountPoint}`);
    return source === "own" ? [] : [{ at: mount.mountPoint, source }];
  });
}

/** Returns the mounts that were not requested for the sandbox. */
export const strayMounts = (mounts: readonly Mount[], requested: RequestedMounts): Mount[] =>
  mounts.filter((mount) => sourceOf(mount, requested) === "stray");

function sourceOf(
  { mountPoint: at, fsType }: Mount,
  { hostDirs, drives }: RequestedMounts,
): MountSource | "own" | "stray" {
  if (OWN.has(at)) return "own";
  if (drives.some(({ path }) => path === at)) return { kind: "drive" };
  if (at === "/.holdfast") return { kind: "keeper" };
  if (at === "/.holdfast/control") return { kind: "control" };
  if (at.startsWith("/dev/")) return { kind: "host", path: at };
  if (at.startsWith("/proc/")) {
    return OWN_BELOW_PROC.includes(fsType) ? "own" : { kind: "host", path: "/dev/null" };
  }
  if (hostDirs.some((dir) => at === dir || at.startsWith(`${dir}/`))) return { kind: "host", path: at };
  return "stray";
}

/**
 * Converts the mounts to CRIU's form. The key of a mount is its position in the list, so the order of the list is part
 * of the checkpoint.
 */
export const externalsOf = (
  bound: readonly BoundMount[],
  pathOf: (source: MountSource, at: string) => string,
): External[] =>
  bound.map(({ at, source }, index) => ({ key: `holdfast-${index}`, at, from: pathOf(source, at) }));
