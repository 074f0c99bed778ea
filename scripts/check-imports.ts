/**
 * Checks that imports between folders follow the table in `rooms.ts`, that the folders form no cycle, that every folder
 * with code has a README, and that no folder has too many files. `--graph` also prints the graph with the number of
 * lines of each room.
 */
import { existsSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { filesIn, importsOf, packageExports, sourceOf } from "./imports.ts";
import { ROOMS } from "./rooms.ts";

const TOP = fileURLToPath(new URL("..", import.meta.url));
/** Maximum number of production files in a folder, because a folder should hold one idea. */
const FILES_PER_FOLDER = 21;
/** Folders with code: each of their folders needs a README. */
const CODE = ["packages", "test", "scripts", "bench", "examples"];

/** Whether the file may import everything: tests and their helpers in packages, and the test of the test setup. */
const isExempt = (file: string): boolean =>
  /^packages\/.*(?:\.test\.ts$|\/testing\/)|^packages\/[^/]+\/fixtures\/|^test\/setup\/.*\.test\.ts$/.test(
    file,
  );

/** Lists the files whose imports are checked: production code in TypeScript and C, and the tests of the product. */
function checkedFiles(): string[] {
  const files = filesIn("packages", "test").filter((file) => !isExempt(file));
  return files.filter((file) => /\.ts$|^packages\/keeper\/c\/.*\.[ch]$|^test\/.*\.mjs$/.test(file));
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

/** Returns the folders that have too many production files. A C file and its header count as one. */
function sizeProblems(files: readonly string[]): string[] {
  const folders = Map.groupBy(new Set(files.map((file) => file.replace(/\.[ch]$/, ""))), (file) =>
    dirname(file),
  );
  return [...folders]
    .filter(([, inside]) => inside.length > FILES_PER_FOLDER)
    .map(
      ([folder, { length }]) =>
        `${folder}: ${length} files, more than ${FILES_PER_FOLDER}; a folder holds one idea`,
    );
}

/** Returns the folders with code that have no README. A package's README also covers its `src`. */
function readmeProblems(): string[] {
  const code = filesIn(...CODE).filter((file) => /\.(ts|mjs|[ch])$/.test(file));
  const hasReadme = (folder: string) => existsSync(join(TOP, folder, "README.md"));
  const isPackage = (folder: string) => existsSync(join(TOP, folder, "package.json"));
  return [...new Set(code.map((file) => dirname(file)))]
    .filter((folder) => {
      const parent = dirname(folder);
      const covered = folder === `${parent}/src` && isPackage(parent) && hasReadme(parent);
      return !hasReadme(folder) && !covered;
    })
    .map((folder) => `${folder}: has no README.md`);
}

const files = checkedFiles();
const names = packageExports();
const problems = [...tableProblems(), ...sizeProblems(files), ...readmeProblems()];
const graph = new Map<string, Set<string>>(ROOMS.map(({ path }) => [path, new Set()]));
const lines = new Map<string, number>();

for (const file of files) {
  const room = roomOf(file);
  if (room === null) {
    problems.push(`${file}: belongs to no room; add its folder to scripts/rooms.ts`);
    continue;
  }
  lines.set(room, (lines.get(room) ?? 0) + sourceOf(file).split("\n").length);
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
