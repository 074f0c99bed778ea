/**
 * Matches names and lines against the patterns of one search. A caller's pattern may take forever or use all memory, so
 * it runs in a separate thread, which can be terminated at any time.
 */
import { posix } from "node:path";
import { parentPort, workerData } from "node:worker_threads";

export interface Patterns {
  /** A glob, matched against names or, if it contains a slash, against paths. */
  name: string | null;
  /** A regular expression, the number of characters of a line that are matched, and the number of context lines. */
  content: { source: string; flags: string; lineMax: number; contextLines: number } | null;
}

/** A request to the worker. Paths are relative to the start of the search. */
export type Request = { paths: readonly string[] } | { text: Uint8Array; linesMax: number };

export interface FoundLines {
  lines: { line: number; text: string; before?: string[]; after?: string[] }[];
  /** Whether a line was too long to be matched completely. */
  isCut: boolean;
}
export type Reply = { matches: boolean[] } | FoundLines | { failure: string };

/** Maximum number of characters of a line that are shown. */
const SHOWN_CHARS = 256;
/** Maximum number of the shown characters that come before the match. */
const BEFORE_CHARS = 64;

const { name, content } = workerData as Patterns;
const expression = content === null ? null : new RegExp(content.source, content.flags);

parentPort?.on("message", (request: Request) => parentPort?.postMessage(answerTo(request)));

function answerTo(request: Request): Reply {
  try {
    return "paths" in request ? { matches: request.paths.map(isNamed) } : linesOf(request);
  } catch (error) {
    return { failure: error instanceof Error ? error.message : String(error) };
  }
}

function isNamed(path: string): boolean {
  if (name === null) return true;
  return posix.matchesGlob(name.includes("/") ? path : posix.basename(path), name);
}

function linesOf({ text, linesMax }: Extract<Request, { text: Uint8Array }>): FoundLines {
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
  // A line break at the end of the text does not begin another line.
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
