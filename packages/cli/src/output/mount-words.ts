import type { Mount } from "@holdfast/sdk";

/** Formats mounts for listings and factsheets. */

export const accessOf = ({ readOnly }: Pick<Mount, "readOnly">): string => (readOnly ? ", read-only" : "");

/** Formats the drive and, if only a part is mounted, its directory, in the syntax of `--mount`: `data/models`. */
export const sourceOf = ({ drive, subpath }: Pick<Mount, "drive" | "subpath">): string =>
  subpath === "/" ? drive : drive + subpath;

export const mountOf = (mount: Mount): string =>
  `${sourceOf(mount)} at ${mount.path}${accessOf(mount)}, ${mount.state}${mount.cause === null ? "" : ` (${mount.cause.message})`}`;
