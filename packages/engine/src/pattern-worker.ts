/**
 * Matches names and lines against the patterns of one search. A pattern is a caller's, and there are patterns that take for
 * ever, or all memory: that is why they are run in a thread of their own, which can be ended at any moment.
 */
import { posix } from "node:path";
import { parentPort, workerData } from "node:worker_threads";

export interface Patterns {
  /** A glob: of names or, with a slash in it, of paths. */
  name: string | null;
  /** A regular expression, and how long a line may be to be matched in full. */
  content: { source: string; flags: string; lineMax: number } | null;
}

/** Paths are relative to where the search begins. */
export type Asked = { paths: readonly string[] } | { text: Uint8Array; linesMax: number };

export interface FoundLines {
  lines: { line: number; text: string }[];
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
  for (const [index, line] of whole.split(/\r?\n/).entries()) {
    const at = line.slice(0, content.lineMax).search(expression);
    if (at < 0 && line.length > content.lineMax) found.isCut = true;
    if (at >= 0) found.lines.push({ line: index + 1, text: shown(line, at) });
    if (found.lines.length >= linesMax) break;
  }
  return found;
}

function shown(line: string, at: number): string {
  const from = at + BEFORE_CHARS < SHOWN_CHARS ? 0 : at - BEFORE_CHARS;
  return line.slice(from, from + SHOWN_CHARS);
}
