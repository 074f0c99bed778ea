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

/** What was mounted from the host, by the mount table inside. Fails where there is something that nobody ordered. */
export function boundMounts(
  mounts: readonly Mount[],
  hostDirs: readonly string[],
  drives: readonly Pick<MountPoint, "path">[],
): BoundMount[] {
  const drivePaths = new Set(drives.map(({ path }) => path));
  return mounts
    .filter(({ mountPoint }) => !OWN.has(mountPoint))
    .flatMap((mount) => {
      const source = drivePaths.has(mount.mountPoint) ? DRIVE : sourceOf(mount, hostDirs);
      return source === null ? [] : [{ at: mount.mountPoint, source }];
    });
}

const DRIVE = { kind: "drive" } as const;

function sourceOf({ mountPoint: at, fsType }: Mount, hostDirs: readonly string[]): MountSource | null {
  if (at === "/.holdfast") return { kind: "keeper" };
  if (at === "/.holdfast/control") return { kind: "control" };
  if (at.startsWith("/dev/")) return { kind: "host", path: at };
  if (at.startsWith("/proc/")) {
    return OWN_BELOW_PROC.includes(fsType) ? null : { kind: "host", path: "/dev/null" };
  }
  if (hostDirs.some((dir) => at === dir || at.startsWith(`${dir}/`))) return { kind: "host", path: at };
  throw new Error(`there is a mount that was not ordered, at ${at}`);
}

/** Keys are by position: the order of the mounts is part of the checkpoint. */
export const externalsOf = (
  bound: readonly BoundMount[],
  pathOf: (source: MountSource, at: string) => string,
): External[] =>
  bound.map(({ at, source }, index) => ({ key: `holdfast-${index}`, at, from: pathOf(source, at) }));
