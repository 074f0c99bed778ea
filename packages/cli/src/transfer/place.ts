import { posix } from "node:path";
import { usage } from "../failure.ts";

/** The source or target of a copy. */
export type Place =
  | { kind: "sandbox" | "drive"; name: string; path: string }
  | { kind: "local"; path: string }
  | { kind: "stdio" };

/**
 * Parses `NAME:/path` (in a sandbox), `drive:NAME:/path` (in a drive) or `-` (stdin or stdout). Anything else is a
 * local path, including `./a:b`.
 */
export function parsePlace(text: string): Place {
  if (text === "-") return { kind: "stdio" };
  const [, drive, name, path] = /^(drive:)?([a-z0-9][a-z0-9_-]*):(.*)$/s.exec(text) ?? [];
  if (name === undefined || path === undefined) return { kind: "local", path: text };
  if (!path.startsWith("/")) {
    const hint = "Use NAME:/path for a file in a sandbox, drive:NAME:/path for a file in a drive.";
    throw usage(`the path in ${text} is not absolute`, hint);
  }
  return { kind: drive === undefined ? "sandbox" : "drive", name, path };
}

/**
 * Returns the path of the copy, by the rules of `cp -r`: If the source is `dir/.`, the contents of `dir` are copied
 * into the target. Otherwise, if the target is a directory or ends with a slash, the copy is created in it, under the
 * source's name. In all other cases, the target is the path of the copy.
 */
export function targetOf(source: string, target: string, targetIsDirectory: boolean): string {
  if (source === "." || source.endsWith("/.")) return target;
  if (!targetIsDirectory && !target.endsWith("/")) return target;
  return posix.join(target, posix.basename(posix.normalize(source)));
}

/**
 * Whether a name from a sandbox can safely become part of a local path. A name that could lead to another directory is
 * rejected.
 */
export const isPlainName = (name: string): boolean =>
  name !== "" && name !== "." && name !== ".." && !name.includes("/") && !name.includes("\0");
