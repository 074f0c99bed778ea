/**
 * The server's own log, kept where it can be asked for: the lines that go to stderr, and those of level info where stderr is
 * told less, in a few files of a bounded size that survive restarts. Questions read backwards from the newest line, a bounded part
 * at a time, so that none of them costs more than another; the cursor goes on from there.
 */
import { HoldfastError, type LogLine, type LogList, type Numbers } from "@holdfast/contract";
import type { Scrub } from "./errors.ts";
import { LogFiles } from "./log-files.ts";
import { type LogFilter, matches, mayMatch, readLine, timeIn } from "./log-line.ts";
import { type FoundLine, type LogPosition, linesBefore } from "./log-reader.ts";
import { LogWriter } from "./log-writer.ts";
import { scrubbed } from "./scrubbed.ts";

/** Questions that are answered at the same time. */
const QUESTIONS_AT_ONCE = 4;

export interface LogQuestion extends LogFilter {
  cursor?: string | undefined;
  limit: number;
}

interface Place {
  files: LogFiles;
  writer: LogWriter;
}

/** Lines that are given before it is opened, at the start of a server, are kept until then. */
const EARLY_LINES = 1_000;

export class LogBook {
  readonly #fileBytes: number;
  readonly #count: number;
  #place: Place | null = null;
  #early: string[] = [];
  #asked = 0;
  readonly #finish = () => this.#place?.writer.finish();

  constructor({ logFileBytes, logFiles }: Pick<Numbers, "logFileBytes" | "logFiles">) {
    this.#fileBytes = logFileBytes;
    this.#count = logFiles;
  }

  /** Takes a line, as a stream of pino's does. It never waits and never fails. */
  write(line: string): void {
    if (this.#place !== null) this.#place.writer.write(line);
    else if (this.#early.length < EARLY_LINES) this.#early.push(line);
  }

  /** Only by who holds the state directory: two writers would write over each other. */
  open(directory: string): void {
    if (this.#fileBytes === 0 || this.#count === 0) return;
    const files = new LogFiles(directory);
    const writer = new LogWriter(files, { fileBytes: this.#fileBytes, count: this.#count });
    this.#place = { files, writer };
    for (const line of this.#early.splice(0)) writer.write(line);
    writer.open();
    process.on("exit", this.#finish);
  }

  async close(): Promise<void> {
    const place = this.#place;
    this.#place = null;
    process.off("exit", this.#finish);
    await place?.writer.close();
  }

  /** Newest first. A page may have few lines, or none, and a cursor: then there is more to look through. */
  async find(question: LogQuestion, scrub: Scrub, signal: AbortSignal): Promise<LogList> {
    if (this.#place === null)
      throw new HoldfastError("not_supported", { message: "This server keeps no log of its own." });
    if (this.#asked >= QUESTIONS_AT_ONCE)
      throw new HoldfastError("too_many_readers", {
        message: `${QUESTIONS_AT_ONCE} callers look through the log already.`,
      });
    this.#asked += 1;
    try {
      return await this.#search(this.#place, question, scrub, signal);
    } finally {
      this.#asked -= 1;
    }
  }

  async #search(
    { files, writer }: Place,
    { cursor, limit, ...filter }: LogQuestion,
    scrub: Scrub,
    signal: AbortSignal,
  ): Promise<LogList> {
    const from = cursor === undefined ? await endOf(writer) : positionIn(cursor);
    const items: LogLine[] = [];
    let bytes = 0;
    for await (const lines of linesBefore(files, from)) {
      signal.throwIfAborted();
      for (const { text, at } of lines) {
        const line = mayMatch(text, filter) ? told(text, filter, scrub) : null;
        if (line === null) continue;
        items.push(line);
        if (items.length === limit) return { items, nextCursor: cursorOf(at) };
      }
      if (areOlder(lines, filter.since)) break;
      bytes += lines.reduce((sum, { text }) => sum + text.length, 0);
      const last = lines.at(-1);
      if (bytes >= this.#fileBytes && last !== undefined) return { items, nextCursor: cursorOf(last.at) };
    }
    return { items, nextCursor: null };
  }
}

async function endOf(writer: LogWriter): Promise<LogPosition> {
  await writer.settle();
  const newest = writer.position;
  return newest === null ? { number: 0, offset: 0 } : { number: newest.number, offset: newest.size };
}

/** What is not told can't be found by looking for it either. */
function told(text: string, filter: LogFilter, scrub: Scrub): LogLine | null {
  const line = readLine(text);
  const clean = line === null ? null : scrubbed(line, scrub);
  return clean !== null && matches(clean, filter) ? clean : null;
}

/** Lines are written in the order of time. A clock that was set back mixes some of them, not as many as are read at once. */
const areOlder = (lines: readonly FoundLine[], since: number | undefined): boolean =>
  since !== undefined && lines.length > 0 && lines.every(({ text }) => (timeIn(text) ?? 0) < since);

const cursorOf = ({ number, offset }: LogPosition): string => `${number}.${offset}`;

function positionIn(cursor: string): LogPosition {
  const [, number, offset] = /^(\d{1,15})\.(\d{1,15})$/.exec(cursor) ?? [];
  if (number === undefined)
    throw new HoldfastError("invalid_request", { message: "The cursor is not valid." });
  return { number: Number(number), offset: Number(offset) };
}
