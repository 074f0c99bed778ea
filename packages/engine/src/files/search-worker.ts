/**
 * Matches names and lines against the patterns of one search. A pattern is a caller's, and there are patterns that take for
 * ever, or all memory: that is why they are run in a thread of their own, which can be ended at any moment.
 */
import { posix } from "node:path";
import { parentPort, workerData } from "node:worker_threads";

export interface Patterns {
  /** A glob: of names or, with a slash in it, of paths. */
  name: string | null;
  /** A regular expression, how long a line may be to be matched in full, and how many lines around it are told. */
  content: { source: string; flags: string; lineMax: number; contextLines: number } | null;
}

/** Paths are relative to where the search begins. */
export type Asked = { paths: readonly string[] } | { text: Uint8Array; linesMax: number };

export interface FoundLines {
  lines: { line: number; text: string; before?: string[]; after?: string[] }[];
  /** A line was longer than what was matched of it. */
  isCut: boolean;
}
export type Told = { matches: boolean[] } | FoundLines | { failure: string };

/** What is shown of a line, and how much of that stands before what was found. */
const SHOWN_CHARS = 256;
const BEFORE_CHARS = 64;

const { name, content } = workerData as Patterns;
const expression = content === null ? null : new RegExp(content.source, content.flags);

parentPort?.on("message", (asked: Asked) => parentPort?.postMessage(answerTo(asked)));

function answerTo(asked: Asked): Told {
  try {
    return "paths" in asked ? { matches: asked.paths.map(isNamed) } : linesOf(asked);
  } catch (error) {
    return { failure: error instanceof Error ? error.message : String(error) };
  }
}

function isNamed(path: string): boolean {
  if (name === null) return true;
  return posix.matchesGlob(name.includes("/") ? path : posix.basename(path), name);
}

function linesOf({ text, linesMax }: Extract<Asked, { text: Uint8Array }>): FoundLines {
  const found: FoundLines = { lines: [], isCut: false };
  if (expression === null || content === null) return found;
  const whole = Buffer.from(text.buffer, text.byteOffset, text.byteLength).toString();
  const all = whole.split(/\r?\n/);
  for (const [index, line] of all.entries()) {
    const at = line.slice(0, content.lineMax).search(expression);
    if (at < 0 && line.length > content.lineMax) found.isCut = true;
    if (at >= 0) found.lines.push({ line: index + 1, text: shown(line, at), ...around(all, index) });
    if (found.lines.length >= linesMax) break;
  }
  return found;
}

function around(all: readonly string[], index: number): { before?: string[]; after?: string[] } {
  const { contextLines = 0 } = content ?? {};
  if (contextLines === 0) return {};
  const cut = (lines: readonly string[]) => lines.map((line) => line.slice(0, SHOWN_CHARS));
  // What follows the last line's end is no line.
  const end = all.at(-1) === "" ? all.length - 1 : all.length;
  return {
    before: cut(all.slice(Math.max(0, index - contextLines), index)),
    after: cut(all.slice(index + 1, Math.min(end, index + 1 + contextLines))),
  };
}

function shown(line: string, at: number): string {
  const from = at + BEFORE_CHARS < SHOWN_CHARS ? 0 : at - BEFORE_CHARS;
  return line.slice(from, from + SHOWN_CHARS);
}
