import { posix } from "node:path";
import { usage } from "./failure.ts";

/** One end of a copy. */
export type Place =
  | { kind: "sandbox"; sandbox: string; path: string }
  | { kind: "local"; path: string }
  | { kind: "stdio" };

/** `NAME:/path` is in a sandbox, `-` is stdin or stdout, all else is here; `./a:b` is here too. */
export function parsePlace(text: string): Place {
  if (text === "-") return { kind: "stdio" };
  const [, sandbox, path] = /^([a-z0-9][a-z0-9_-]*):(.*)$/s.exec(text) ?? [];
  if (sandbox === undefined || path === undefined) return { kind: "local", path: text };
  if (!path.startsWith("/")) {
    throw usage(`the path in ${text} is not absolute`, "Write NAME:/path for a file in a sandbox.");
  }
  return { kind: "sandbox", sandbox, path };
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
