/**
 * Reads the files of the repository and resolves their imports, for `check-imports.ts` and `check-exports.ts`.
 */
import { execFileSync } from "node:child_process";
import { existsSync, readFileSync } from "node:fs";
import { dirname, join, normalize } from "node:path";
import { fileURLToPath } from "node:url";

const TOP = fileURLToPath(new URL("..", import.meta.url));
const C_SOURCES = "packages/keeper/c";

interface Import {
  file: string;
  line: number;
  /**
   * The path of the imported file, or the name as written if it looks like a file of this repository but is not found.
   */
  target: string;
}

/** Lists the files of these folders that git tracks or would track. Without folders, lists all. */
export function filesIn(...folders: string[]): string[] {
  return execFileSync("git", ["ls-files", "-co", "--exclude-standard", ...folders], { cwd: TOP })
    .toString()
    .split("\n")
    .filter((file) => file !== "" && existsSync(join(TOP, file)));
}

export const sourceOf = (file: string): string => readFileSync(join(TOP, file), "utf8");

/** Maps every exported name, `@holdfast/x` or `@holdfast/x/y`, to its file, from the packages' `exports`. */
export function packageExports(): Map<string, string> {
  const found = new Map<string, string>();
  for (const file of filesIn("packages")) {
    if (!file.endsWith("/package.json")) continue;
    const { name, exports } = JSON.parse(sourceOf(file)) as {
      name: string;
      exports?: Record<string, string>;
    };
    for (const [key, path] of Object.entries(exports ?? {}))
      found.set(normalize(join(name, key)), normalize(join(dirname(file), path)));
  }
  return found;
}

/** Returns the file that a module specifier refers to, or null if it is not a file of the repository. */
export function resolveImport(
  file: string,
  specifier: string,
  names: ReadonlyMap<string, string>,
): string | null {
  if (specifier.startsWith(".")) return normalize(join(dirname(file), specifier));
  const target = names.get(specifier);
  if (target !== undefined) return target;
  return specifier.startsWith("@holdfast/") ? specifier : null;
}

const lineOf = (text: string, index: number): number => text.slice(0, index).split("\n").length;

/** Returns the files that a TypeScript or JavaScript file imports, or that a C file includes. */
export function importsOf(file: string, names: ReadonlyMap<string, string>): Import[] {
  const text = sourceOf(file);
  const found: Import[] = [];
  if (/\.[ch]$/.test(file)) {
    for (const { index, 1: path = "" } of text.matchAll(/^\s*#\s*include\s+"([^"]+)"/gm))
      found.push({ file, line: lineOf(text, index), target: join(C_SOURCES, path) });
    return found;
  }
  for (const { index, 1: specifier = "" } of text.matchAll(
    /(?:\bfrom\s+|\bimport\s*\(\s*|^import\s+)"([^"]+)"/gm,
  )) {
    const target = resolveImport(file, specifier, names);
    if (target !== null && !target.endsWith(".json")) found.push({ file, line: lineOf(text, index), target });
  }
  return found;
}
