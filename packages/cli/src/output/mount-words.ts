import type { Mount } from "@holdfast/sdk";

/** How mounts are written where they are one thing among others. */

export const accessOf = ({ readOnly }: Pick<Mount, "readOnly">): string => (readOnly ? ", read-only" : "");

/** With the directory of the drive that is mounted, as `--mount` takes it: `data/models`. */
export const sourceOf = ({ drive, subpath }: Pick<Mount, "drive" | "subpath">): string =>
  subpath === "/" ? drive : drive + subpath;

export const mountOf = (mount: Mount): string =>
  `${sourceOf(mount)} at ${mount.path}${accessOf(mount)}, ${mount.state}${mount.cause === null ? "" : ` (${mount.cause.message})`}`;
