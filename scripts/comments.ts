/** Finds comments in the text of a source file. */

interface Comment {
  line: number;
  /** The comment's text on one line, without its markers. */
  text: string;
  /** The line of code below the comment, which the comment is about. */
  code: string;
}

/** Matches a block comment, or consecutive lines that begin with two slashes. */
const COMMENT = /^[ \t]*(\/\*[\s\S]*?\*\/|(?:\/\/ .*(?:\n[ \t]*)?)+)/gm;
const MARKERS = /^[ \t]*(\/\*\*?|\*\/|\*|\/\/)|\*\/[ \t]*$/gm;

export function commentsIn(source: string): Comment[] {
  return [...source.matchAll(COMMENT)].map((match) => ({
    line: source.slice(0, match.index).split("\n").length,
    text: (match[1] ?? "").replaceAll(MARKERS, "").replaceAll(/\s+/g, " ").trim(),
    code: codeAt(source, match.index + match[0].length),
  }));
}

const codeAt = (source: string, index: number): string =>
  source.slice(index).trimStart().split("\n", 1)[0]?.trim() ?? "";
