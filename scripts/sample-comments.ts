/**
 * Prints a random sample of comments for a reader who has not seen the code: `node scripts/sample-comments.ts [--seed
 * 1] [--count 60] [--under packages/keeper/c]`. Below each comment is the line of code that follows it in the file. The
 * same seed on the same tree gives the same comments. A comment is clear if one reading suffices.
 */
import { execFileSync } from "node:child_process";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { parseArgs } from "node:util";
import { commentsIn } from "./comments.ts";

const TOP = fileURLToPath(new URL("..", import.meta.url));
/**
 * Minimum length of a comment in the sample, not counting the dashes of a heading. Shorter comments are labels, which
 * are too short to be unclear.
 */
const MIN_LENGTH = 30;
/** Matches the dashes around the text of a section heading, as in `── Requests ──────`. */
const HEADING_DASHES = /^─+ | ─+$/g;

function longCommentsOf(file: string): { place: string; text: string; code: string }[] {
  return commentsIn(readFileSync(join(TOP, file), "utf8"))
    .map((comment) => ({ ...comment, text: comment.text.replaceAll(HEADING_DASHES, "") }))
    .filter(({ text }) => text.length >= MIN_LENGTH && !text.startsWith("biome-ignore"))
    .map(({ line, text, code }) => ({ place: `${file}:${line}`, text, code }));
}

/** Returns a generator of numbers in [0, 1) that depend only on the seed (mulberry32). */
function randomNumbers(seed: number): () => number {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let value = Math.imul(state ^ (state >>> 15), state | 1);
    value ^= value + Math.imul(value ^ (value >>> 7), value | 61);
    return ((value ^ (value >>> 14)) >>> 0) / 2 ** 32;
  };
}

const { values } = parseArgs({
  options: {
    seed: { type: "string", default: "1" },
    count: { type: "string", default: "60" },
    /** Folders whose comments are drawn. */
    under: { type: "string", multiple: true, default: ["packages", "scripts"] },
  },
});
const files = execFileSync("git", ["ls-files", ...values.under], { cwd: TOP })
  .toString()
  .split("\n")
  .filter((file) => /\.(ts|mjs|c|h)$/.test(file) && !/\.test\.ts$|\.generated\.ts$/.test(file));
const all = files.flatMap(longCommentsOf);
const random = randomNumbers(Number(values.seed));
const drawn = new Set<(typeof all)[number]>();
while (drawn.size < Math.min(Number(values.count), all.length)) {
  const comment = all[Math.floor(random() * all.length)];
  if (comment !== undefined) drawn.add(comment);
}
console.log(`${drawn.size} of ${all.length} comments, seed ${values.seed}\n`);
for (const [index, { place, text, code }] of [...drawn].entries())
  console.log(`${index + 1}. ${place}\n   ${text}\n   | ${code}\n`);
