import { type FileHandle, open } from "node:fs/promises";
import type { LogFiles } from "./log-files.ts";
import { LINE_BYTES } from "./log-writer.ts";

/** Bytes read and searched in one turn of the event loop. */
const CHUNK_BYTES = 262_144;
const NEWLINE = 10;

/** A position between two lines. */
export interface LogPosition {
  number: number;
  offset: number;
}

export interface FoundLine {
  text: string;
  /** Position of the line's first byte. All bytes before it belong to older lines. */
  at: LogPosition;
}

/**
 * Yields the log's lines backwards from a position, newest first, one chunk at a time. The iteration ends after the
 * oldest line.
 */
export async function* readLinesBefore(
  files: LogFiles,
  from: LogPosition,
): AsyncGenerator<FoundLine[], void, undefined> {
  const numbers = (await files.numbers()).filter((number) => number <= from.number);
  for (const number of numbers.reverse()) {
    // The file may be missing, because the oldest file may be deleted while the log is read.
    const file = await open(files.path(number)).catch(() => null);
    if (file === null) return;
    try {
      const { size } = await file.stat();
      const end = number === from.number ? Math.min(from.offset, size) : size;
      yield* linesOf(file, number, end);
    } finally {
      await file.close();
    }
  }
}

async function* linesOf(
  file: FileHandle,
  number: number,
  end: number,
): AsyncGenerator<FoundLine[], void, undefined> {
  /**
   * The bytes before the first newline of the chunk read last. Chunks are read backwards, so these bytes may be the end
   * of a line that begins in the next chunk to be read.
   */
  let rest: Buffer = Buffer.alloc(0);
  for (let to = end; to > 0; ) {
    const chunk = Buffer.alloc(Math.min(CHUNK_BYTES, to));
    const { bytesRead } = await file.read(chunk, 0, chunk.length, to - chunk.length);
    if (bytesRead < chunk.length) return;
    to -= chunk.length;
    const bytes = Buffer.concat([chunk, rest]);
    const first = to === 0 ? 0 : bytes.indexOf(NEWLINE) + 1;
    const lines = split(bytes, first).map(({ text, at }) => ({ text, at: { number, offset: to + at } }));
    rest = bytes.subarray(0, first);
    // A log line is never this long. If so many bytes contain no newline, they are not a log line, and they are
    // dropped.
    if (rest.length > CHUNK_BYTES + LINE_BYTES) rest = rest.subarray(0, 0);
    yield lines;
  }
}

/** Returns the lines that begin at or after offset `first`, newest first. */
function split(bytes: Buffer, first: number): { text: string; at: number }[] {
  const lines: { text: string; at: number }[] = [];
  for (let at = first; at < bytes.length; ) {
    const newline = bytes.indexOf(NEWLINE, at);
    const end = newline < 0 ? bytes.length : newline;
    if (end > at) lines.push({ text: bytes.toString("utf8", at, end), at });
    at = end + 1;
  }
  return lines.reverse();
}
