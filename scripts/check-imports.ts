/**
 * Checks that imports between folders follow the table in `rooms.ts`, that the folders form no cycle, and that every
 * folder has a README. `--graph` also prints the graph with the number of lines of each room.
 */
import { execFileSync } from "node:child_process";
import { existsSync, readFileSync } from "node:fs";
import { dirname, join, normalize } from "node:path";
import { fileURLToPath } from "node:url";
import { ROOMS } from "./rooms.ts";

const TOP = fileURLToPath(new URL("..", import.meta.url));
/** Maximum number of production files in a folder, because a folder should hold one idea. */
const FILES_PER_FOLDER = 25;

interface Import {
  file: string;
  line: number;
  target: string;
}

const isTest = (file: string): boolean => /\.test\.ts$|\/testing\/|^packages\/[^/]+\/fixtures\//.test(file);

function sourceFiles(): string[] {
  const list = execFileSync("git", ["ls-files", "-co", "--exclude-standard", "packages"], { cwd: TOP });
  return list
    .toString()
    .split("\n")
    .filter((file) => file.endsWith(".ts") && !isTest(file) && existsSync(join(TOP, file)));
}

/** Maps every exported name, `@holdfast/x` or `@holdfast/x/y`, to its file, from the packages' `exports`. */
function packageExports(): Map<string, string> {
  const found = new Map<string, string>();
  const list = execFileSync("git", ["ls-files", "-co", "--exclude-standard", "packages"], { cwd: TOP });
  for (const file of list.toString().split("\n")) {
    if (!file.endsWith("/package.json")) continue;
    const { name, exports } = JSON.parse(readFileSync(join(TOP, file), "utf8")) as {
      name: string;
      exports?: Record<string, string>;
    };
    for (const [key, path] of Object.entries(exports ?? {}))
      found.set(normalize(join(name, key)), normalize(join(dirname(file), path)));
  }
  return found;
}

function importsOf(file: string, names: ReadonlyMap<string, string>): Import[] {
  const text = readFileSync(join(TOP, file), "utf8");
  const found: Import[] = [];
  for (const match of text.matchAll(/(?:\bfrom\s+|\bimport\s*\(\s*|^import\s+)"([^"]+)"/gm)) {
    const [, specifier = ""] = match;
    const line = text.slice(0, match.index).split("\n").length;
    const target = specifier.startsWith(".")
      ? normalize(join(dirname(file), specifier))
      : names.get(specifier);
    if (target?.endsWith(".json")) continue;
    if (target !== undefined) found.push({ file, line, target });
    else if (specifier.startsWith("@holdfast/")) found.push({ file, line, target: specifier });
  }
  return found;
}

const contains = (room: string, path: string): boolean => path === room || path.startsWith(`${room}/`);

function roomOf(file: string): string | null {
  const all = ROOMS.filter(({ path }) => contains(path, file)).map(({ path }) => path);
  return all.toSorted((a, b) => b.length - a.length)[0] ?? null;
}

/** Returns errors in the table itself: rows that import a room which is not defined by a row above them. */
function tableProblems(): string[] {
  const above: string[] = [];
  return ROOMS.flatMap(({ path, imports }) => {
    const wrong = imports.filter((name) => !above.some((room) => contains(name, room)));
    above.push(path);
    return wrong.map((name) => `rooms.ts: ${path} may not name ${name}, which is not above it in the table`);
  });
}

/** Returns the first import cycle among the rooms, or null. */
function findCycle(graph: ReadonlyMap<string, ReadonlySet<string>>): string[] | null {
  const done = new Set<string>();
  const visit = (room: string, path: readonly string[]): string[] | null => {
    if (path.includes(room)) return [...path.slice(path.indexOf(room)), room];
    if (done.has(room)) return null;
    for (const next of graph.get(room) ?? []) {
      const cycle = visit(next, [...path, room]);
      if (cycle !== null) return cycle;
    }
    done.add(room);
    return null;
  };
  for (const room of graph.keys()) {
    const cycle = visit(room, []);
    if (cycle !== null) return cycle;
  }
  return null;
}

const files = sourceFiles();
const names = packageExports();
const problems = tableProblems();
const graph = new Map<string, Set<string>>(ROOMS.map(({ path }) => [path, new Set()]));
const folders = new Map<string, number>();
const lines = new Map<string, number>();

for (const file of files) {
  const room = roomOf(file);
  if (room === null) {
    problems.push(`${file}: belongs to no room; add its folder to scripts/rooms.ts`);
    continue;
  }
  const folder = dirname(file);
  folders.set(folder, (folders.get(folder) ?? 0) + 1);
  const length = readFileSync(join(TOP, file), "utf8").split("\n").length;
  lines.set(room, (lines.get(room) ?? 0) + length);
  const allowed = ROOMS.find(({ path }) => path === room)?.imports ?? [];
  for (const { line, target } of importsOf(file, names)) {
    const other = roomOf(target);
    if (other === room) continue;
    if (other === null) problems.push(`${file}:${line}: ${target} belongs to no room`);
    else {
      graph.get(room)?.add(other);
      if (!allowed.some((name) => contains(name, other)))
        problems.push(`${file}:${line}: ${room} may not import ${other}`);
    }
  }
}

for (const [folder, count] of folders) {
  if (count > FILES_PER_FOLDER) problems.push(`${folder}: ${count} files; a folder holds one idea`);
  const isNested = folder.split("/").length > 2;
  const hasReadme =
    existsSync(join(TOP, folder, "README.md")) || existsSync(join(TOP, dirname(folder), "README.md"));
  if (isNested && !hasReadme) problems.push(`${folder}: has no README.md`);
}

const cycle = findCycle(graph);
if (cycle !== null) problems.push(`cycle: ${cycle.join(" → ")}`);

if (process.argv.includes("--graph")) {
  for (const { path } of ROOMS) {
    const to = [...(graph.get(path) ?? [])].toSorted();
    console.log(`${path} (${lines.get(path) ?? 0} lines)${to.length > 0 ? ` → ${to.join(", ")}` : ""}`);
  }
}
for (const problem of problems) console.error(problem);
if (problems.length > 0) process.exitCode = 1;
else console.log(`imports  ${ROOMS.length} rooms, no forbidden edge, no cycle`);
