import { posix } from "node:path";
import { usage } from "./failure.ts";

/** One end of a copy. */
export type Place =
  | { kind: "sandbox" | "drive"; name: string; path: string }
  | { kind: "local"; path: string }
  | { kind: "stdio" };

/** `NAME:/path` is in a sandbox, `drive:NAME:/path` in a drive, `-` is stdin or stdout, all else is here; `./a:b` is here too. */
export function parsePlace(text: string): Place {
  if (text === "-") return { kind: "stdio" };
  const [, drive, name, path] = /^(drive:)?([a-z0-9][a-z0-9_-]*):(.*)$/s.exec(text) ?? [];
  if (name === undefined || path === undefined) return { kind: "local", path: text };
  if (!path.startsWith("/")) {
    const hint = "Write NAME:/path for a file in a sandbox, drive:NAME:/path for one in a drive.";
    throw usage(`the path in ${text} is not absolute`, hint);
  }
  return { kind: drive === undefined ? "sandbox" : "drive", name, path };
}

/**
 * Where a copy ends up, by the rules of `cp -r`: into a directory that is there (or is asked for by a trailing slash)
 * under the source's own name, else under the name given. A source of `dir/.` means what is in it.
 */
export function targetOf(source: string, target: string, targetIsDirectory: boolean): string {
  if (source === "." || source.endsWith("/.")) return target;
  if (!targetIsDirectory && !target.endsWith("/")) return target;
  return posix.join(target, posix.basename(posix.normalize(source)));
}

/** A name out of a sandbox's directory becomes part of a path here: anything that could lead elsewhere is refused. */
export const isPlainName = (name: string): boolean =>
  name !== "" && name !== "." && name !== ".." && !name.includes("/") && !name.includes("\0");
