import type { Mount } from "@holdfast/sdk";

/** Returns what follows a mount in a list: ", read-only", or nothing if the mount is writable. */
export const accessOf = ({ readOnly }: Pick<Mount, "readOnly">): string => (readOnly ? ", read-only" : "");

/** Formats the mounted drive in the syntax of `--mount`: `data`, or `data/models` if only a directory is mounted. */
export const sourceOf = ({ drive, subpath }: Pick<Mount, "drive" | "subpath">): string =>
  subpath === "/" ? drive : drive + subpath;

export const mountOf = (mount: Mount): string =>
  `${sourceOf(mount)} at ${mount.path}${accessOf(mount)}, ${mount.state}${mount.cause === null ? "" : ` (${mount.cause.message})`}`;
