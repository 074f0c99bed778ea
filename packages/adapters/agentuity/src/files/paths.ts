import { posix } from "node:path";
import { DEFAULT_USER } from "@holdfast/contract";

/** Where commands start, and relative paths begin. */
export const WORKSPACE: string = DEFAULT_USER.home;

export const inWorkspace = (path: string): string => {
  const absolute = path.startsWith("/") ? path : `${WORKSPACE}/${path}`;
  // A path out of the workspace is refused where all such paths are: `..` stays in it.
  return absolute.split("/").includes("..") ? absolute : posix.normalize(absolute).replace(/(?<=.)\/$/, "");
};
