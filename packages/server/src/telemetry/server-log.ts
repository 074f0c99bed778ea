/**
 * The server's stored log, in a few files of bounded size that survive restarts. It contains all lines of level info
 * and above, even those that are not written to stderr. It contains debug lines only if debug lines are also written to
 * stderr. A query reads backwards, from the newest line or from a cursor, and stops after a bounded number of bytes, so
 * that all queries have the same maximum cost. If it stops before the oldest line, it returns a cursor from which the
 * next query continues.
 */
import { HoldfastError, type LogLine, type LogList, type Numbers } from "@holdfast/contract";
import { invalidCursor } from "@holdfast/engine";
import type { Scrub } from "../http/scrub.ts";
import { scrubJson } from "../http/scrub-json.ts";
import type { LogFilter, LogQuery, ServerLogReader } from "../ports/telemetry.ts";
import { LogFiles } from "./log-files.ts";
import { matches, mayMatch, readLine, timeIn } from "./log-line.ts";
import { type FoundLine, type LogPosition, readLinesBefore } from "./log-reader.ts";
import { LogWriter } from "./log-writer.ts";

/** Maximum number of concurrent queries. */
const MAX_CONCURRENT_QUERIES = 4;

interface Place {
  files: LogFiles;
  writer: LogWriter;
}

/** Maximum number of lines that are buffered while the server starts, before `open` is called. */
const EARLY_LINES = 1_000;

export class ServerLog implements ServerLogReader {
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

  /** Appends a line. Pino calls this method as on a stream; it never waits and never throws. */
  write(line: string): void {
    if (this.#place !== null) this.#place.writer.write(line);
    else if (this.#early.length < EARLY_LINES) this.#early.push(line);
  }

  /**
   * Opens the log. The process must hold the lock on the state directory, because two writers would overwrite each
   * other.
   */
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

  /**
   * Returns one page of lines, newest first. If the page has a cursor, older lines were not searched yet, even if the
   * page contains few or no lines.
   */
  async find(query: LogQuery, scrub: Scrub, signal: AbortSignal): Promise<LogList> {
    if (this.#place === null)
      throw new HoldfastError("not_supported", { message: "This server does not store its log." });
    if (this.#asked >= MAX_CONCURRENT_QUERIES)
      throw new HoldfastError("too_many_readers", {
        message: `${MAX_CONCURRENT_QUERIES} callers are already reading the log.`,
      });
    this.#asked += 1;
    try {
      return await this.#search(this.#place, query, scrub, signal);
    } finally {
      this.#asked -= 1;
    }
  }

  async #search(
    { files, writer }: Place,
    { cursor, limit, ...filter }: LogQuery,
    scrub: Scrub,
    signal: AbortSignal,
  ): Promise<LogList> {
    const from = cursor === undefined ? await endOf(writer) : positionIn(cursor);
    const items: LogLine[] = [];
    let bytes = 0;
    for await (const lines of readLinesBefore(files, from)) {
      signal.throwIfAborted();
      for (const { text, at } of lines) {
        const line = mayMatch(text, filter) ? readMatching(text, filter, scrub) : null;
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

/**
 * Returns the line if it matches the filter. The filter sees the line after host paths were removed, so a search can't
 * reveal removed text.
 */
function readMatching(text: string, filter: LogFilter, scrub: Scrub): LogLine | null {
  const line = readLine(text);
  const clean = line === null ? null : scrubJson(line, scrub);
  return clean !== null && matches(clean, filter) ? clean : null;
}

/**
 * Returns whether all lines are older than `since`. If so, the search stops, because the lines further back in the log
 * are older still. Lines are out of order only where the clock was set back, and those lines fill less than one chunk,
 * so no match is missed.
 */
const areOlder = (lines: readonly FoundLine[], since: number | undefined): boolean =>
  since !== undefined && lines.length > 0 && lines.every(({ text }) => (timeIn(text) ?? 0) < since);

const cursorOf = ({ number, offset }: LogPosition): string => `${number}.${offset}`;

function positionIn(cursor: string): LogPosition {
  const [, number, offset] = /^(\d{1,15})\.(\d{1,15})$/.exec(cursor) ?? [];
  if (number === undefined) throw invalidCursor();
  return { number: Number(number), offset: Number(offset) };
}
