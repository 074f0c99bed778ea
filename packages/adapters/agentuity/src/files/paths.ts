import { posix } from "node:path";
import { DEFAULT_USER } from "@holdfast/contract";

/** The directory where commands start and relative paths begin. */
export const WORKSPACE: string = DEFAULT_USER.home;

export const inWorkspace = (path: string): string => {
  const absolute = path.startsWith("/") ? path : `${WORKSPACE}/${path}`;
  // A path with `..` is not normalized, so that the engine refuses it like every path with `..`.
  return absolute.split("/").includes("..") ? absolute : posix.normalize(absolute).replace(/(?<=.)\/$/, "");
};
