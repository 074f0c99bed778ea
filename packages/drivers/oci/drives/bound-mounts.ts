import type { MountPoint } from "@holdfast/engine";
import type { External } from "./criu.ts";
import type { Mount } from "./mounts.ts";

/** Where something that is mounted into a sandbox comes from. Paths of the installation itself may change; these don't. */
export type MountSource =
  | { kind: "keeper" }
  | { kind: "control" }
  | { kind: "host"; path: string }
  /** Whichever is to be there when it is mounted again. */
  | { kind: "drive" };

export interface BoundMount {
  at: string;
  source: MountSource;
}

/** File systems that the runtime made for the sandbox alone: their contents are part of its memory. */
const OWN = new Set(["/", "/proc", "/dev", "/dev/pts", "/dev/shm"]);
const OWN_BELOW_PROC = ["proc", "tmpfs"];

/** What else an instance has by order. */
interface Ordered {
  hostDirs: readonly string[];
  drives: readonly Pick<MountPoint, "path">[];
}

/** What was mounted from the host, by the mount table inside. Fails where there is something that nobody ordered. */
export function boundMounts(mounts: readonly Mount[], ordered: Ordered): BoundMount[] {
  return mounts.flatMap((mount) => {
    const source = sourceOf(mount, ordered);
    if (source === "nobody's")
      throw new Error(`there is a mount that was not ordered, at ${mount.mountPoint}`);
    return source === "its own" ? [] : [{ at: mount.mountPoint, source }];
  });
}

/** What nobody ordered where it is. */
export const strayMounts = (mounts: readonly Mount[], ordered: Ordered): Mount[] =>
  mounts.filter((mount) => sourceOf(mount, ordered) === "nobody's");

function sourceOf(
  { mountPoint: at, fsType }: Mount,
  { hostDirs, drives }: Ordered,
): MountSource | "its own" | "nobody's" {
  if (OWN.has(at)) return "its own";
  if (drives.some(({ path }) => path === at)) return { kind: "drive" };
  if (at === "/.holdfast") return { kind: "keeper" };
  if (at === "/.holdfast/control") return { kind: "control" };
  if (at.startsWith("/dev/")) return { kind: "host", path: at };
  if (at.startsWith("/proc/")) {
    return OWN_BELOW_PROC.includes(fsType) ? "its own" : { kind: "host", path: "/dev/null" };
  }
  if (hostDirs.some((dir) => at === dir || at.startsWith(`${dir}/`))) return { kind: "host", path: at };
  return "nobody's";
}

/** Keys are by position: the order of the mounts is part of the checkpoint. */
export const externalsOf = (
  bound: readonly BoundMount[],
  pathOf: (source: MountSource, at: string) => string,
): External[] =>
  bound.map(({ at, source }, index) => ({ key: `holdfast-${index}`, at, from: pathOf(source, at) }));
