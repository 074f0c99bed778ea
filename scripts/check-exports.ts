/**
 * Reports every `export` that no other file uses. After the word `export` is removed, the compiler reports the
 * declaration if its own file does not use it either.
 */
import { execFileSync } from "node:child_process";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";

const TOP = fileURLToPath(new URL("..", import.meta.url));
const EXPORT =
  /^export (?:default )?(?:async )?(?:abstract )?(?:const|let|function\*?|class|interface|type) ([A-Za-z_$][\w$]*)/gm;

const files = execFileSync("git", ["ls-files", "-co", "--exclude-standard"], { cwd: TOP })
  .toString()
  .split("\n")
  .filter((file) => /\.(ts|tsx|mjs)$/.test(file) && !/\.generated\.ts$/.test(file));
const sources = new Map(files.map((file) => [file, readFileSync(join(TOP, file), "utf8")]));

/**
 * The number of files in which each word occurs. A word in two files counts as used, even if it means different things
 * there.
 */
const uses = new Map<string, number>();
for (const source of sources.values()) {
  for (const word of new Set(source.match(/[A-Za-z_$][\w$]*/g))) uses.set(word, (uses.get(word) ?? 0) + 1);
}

let count = 0;
for (const [file, source] of sources) {
  for (const [, name = ""] of source.matchAll(EXPORT)) {
    if (uses.get(name) !== 1) continue;
    console.error(`${file}: ${name} is exported, and used in this file alone`);
    count += 1;
  }
}
if (count > 0) process.exitCode = 1;
else console.log("exports  every export is used by another file");
