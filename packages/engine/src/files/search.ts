import { posix } from "node:path";
import type { FileMatch, FileSearch } from "@holdfast/contract";
import { mapAhead } from "../lib/map-ahead.ts";
import type { SearchOptions } from "../ports/api.ts";
import { type Clock, KeeperRefusal, type Stat } from "../ports/index.ts";
import type { Reading } from "./file-source.ts";
import { viewFile } from "./file-view.ts";
import { Matcher } from "./search-matcher.ts";

/**
 * Time limit of a search. A search that reaches a limit on time, entries, bytes or lines ends with the matches so far
 * and is marked as truncated.
 */
const SEARCH_MS = 20_000;
const ENTRIES_MAX = 200_000;
const DIRECTORY_ENTRIES_MAX = 50_000;
const READ_BYTES_MAX = 256 * 1_048_576;
/** Maximum number of lines in the result, including context lines. */
const LINES_MAX = 5_000;
/** Maximum number of bytes read from a file. */
const FILE_BYTES_MAX = 4 * 1_048_576;
/** Maximum number of lines returned from a file. */
const FILE_LINES_MAX = 50;
/** Maximum number of files that are read ahead of the one that is being matched. */
const FILES_AHEAD = 8;
/** Number of bytes at the start of a file that are checked for a zero byte, which shows that the file is binary. */
const BINARY_BYTES = 8_192;

interface Searching extends SearchOptions {
  clock: Clock;
  files: Reading;
  path: string;
  /** Whether the search skips the path and everything below it. */
  isSkipped(path: string): boolean;
  signal: AbortSignal;
}

/**
 * Searches a directory tree by name and content, breadth first. Symbolic links are matched but never followed, so the search
 * terminates. Unreadable files and directories are skipped.
 */
export async function searchFiles(searching: Searching): Promise<FileSearch> {
  await using matcher = new Matcher(searching.clock, searching, searching.signal);
  const search = new Search(searching, matcher);
  await search.run();
  const { path } = searching;
  return { path, items: search.items, truncated: search.isCut };
}

type Text = Uint8Array<ArrayBuffer>;

interface Entry {
  path: string;
  name: string;
  stat: Stat;
}

class Search {
  readonly items: FileMatch[] = [];
  isCut = false;
  readonly #given: Searching;
  readonly #matcher: Matcher;
  readonly #excluded: ReadonlySet<string>;
  readonly #endsAt: number;
  #entriesLeft = ENTRIES_MAX;
  #bytesLeft = READ_BYTES_MAX;
  #linesLeft = LINES_MAX;

  constructor(given: Searching, matcher: Matcher) {
    this.#given = given;
    this.#matcher = matcher;
    this.#excluded = new Set(given.exclude);
    this.#endsAt = given.clock.now() + SEARCH_MS;
  }

  async run(): Promise<void> {
    const directories = [this.#given.path];
    for (let at = 0; at < directories.length; at++) {
      const entries = await this.#entries(directories[at] ?? "/");
      for await (const [entry, text] of this.#read(await this.#named(entries))) {
        if (this.#isOver()) return;
        await this.#take(entry, text);
      }
      for (const { path, name, stat } of entries)
        if (stat.kind === "directory" && !this.#excluded.has(name)) directories.push(path);
      if (at + 1 < directories.length && this.#isOver()) return;
    }
  }

  /**
   * Whether a limit was reached. Call this only if there is more to search, because it marks the result as truncated.
   */
  #isOver(): boolean {
    const left = [this.#bytesLeft, this.#linesLeft, this.#given.limit - this.items.length];
    const isOver = left.some((each) => each <= 0) || this.#given.clock.now() >= this.#endsAt;
    if (isOver) this.isCut = true;
    return isOver;
  }

  async #entries(directory: string): Promise<Entry[]> {
    const { files, path: top, isSkipped, signal } = this.#given;
    if (this.#entriesLeft <= 0) {
      this.isCut = true;
      return [];
    }
    const limit = Math.min(this.#entriesLeft, DIRECTORY_ENTRIES_MAX);
    const listed = await files.list(directory, { limit }, signal).catch(unlessUnreadable(directory !== top));
    if (listed === null) return [];
    if (listed.truncated) this.isCut = true;
    this.#entriesLeft -= listed.entries.length;
    return listed.entries
      .map(({ name, stat }) => ({ path: posix.join(directory, name), name, stat }))
      .filter(({ path }) => !isSkipped(path));
  }

  async #named(entries: readonly Entry[]): Promise<Entry[]> {
    if (entries.length === 0) return [];
    const top = this.#given.path === "/" ? 1 : this.#given.path.length + 1;
    const matches = await this.#matcher.names(entries.map(({ path }) => path.slice(top)));
    return entries.filter((_, index) => matches[index]);
  }

  /**
   * Yields the entries in order. If content is searched, yields the texts of files too, and reads the next files while
   * one is matched.
   */
  #read(entries: readonly Entry[]): AsyncIterable<[entry: Entry, text: Text | null]> {
    const isSearched = this.#given.content !== undefined;
    return mapAhead(entries, isSearched ? FILES_AHEAD : 0, async (entry) => {
      return [entry, isSearched && entry.stat.kind === "file" ? await this.#text(entry.path) : null];
    });
  }

  /** Adds the entry to the result; in a content search only if a line matches. */
  async #take({ path, stat }: Entry, text: Text | null): Promise<void> {
    if (this.#given.content === undefined) {
      this.items.push(viewFile(path, stat));
      return;
    }
    if (text === null) return;
    const linesEach = 1 + 2 * (this.#given.contextLines ?? 0);
    const most = Math.min(FILE_LINES_MAX, Math.ceil(this.#linesLeft / linesEach));
    const { lines, isCut } = await this.#matcher.lines(text, most);
    if (isCut) this.isCut = true;
    if (lines.length === 0) return;
    this.#linesLeft -= lines.length * linesEach;
    this.items.push({ ...viewFile(path, stat), lines });
  }

  /** Returns the first `FILE_BYTES_MAX` bytes of a file; null if the file is binary or can't be read. */
  async #text(path: string): Promise<Text | null> {
    const { files, signal } = this.#given;
    const range = { offset: 0, length: FILE_BYTES_MAX };
    const opened = await files.read(path, range, signal).catch(unlessUnreadable(true));
    if (opened === null) return null;
    try {
      const text = await collect(opened.body, range.length);
      this.#bytesLeft -= text.length;
      if (isBinary(text)) return null;
      if (text.length < opened.stat.sizeBytes) this.isCut = true;
      return text;
    } catch (error) {
      return unlessUnreadable(true)(error);
    }
  }
}

/** Turns a refusal of the keeper into null. `not_on_disk` is rethrown, because the caller can then wake the sandbox. */
const unlessUnreadable =
  (isSkipped: boolean) =>
  (error: unknown): null => {
    if (isSkipped && error instanceof KeeperRefusal && error.reason !== "not_on_disk") return null;
    throw error;
  };

const isBinary = (text: Uint8Array): boolean => text.subarray(0, BINARY_BYTES).includes(0);

/** Collects the body into a new buffer, which can be transferred to a worker. Stops early if the data is binary. */
async function collect(body: AsyncIterable<Uint8Array>, max: number): Promise<Text> {
  const parts: Uint8Array[] = [];
  let size = 0;
  for await (const part of body) {
    const piece = part.subarray(0, max - size);
    parts.push(piece);
    size += piece.length;
    if (size >= max || (parts.length === 1 && isBinary(piece))) break;
  }
  const whole = new Uint8Array(size);
  let at = 0;
  for (const part of parts) {
    whole.set(part, at);
    at += part.length;
  }
  return whole;
}
