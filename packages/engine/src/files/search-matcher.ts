import { Worker } from "node:worker_threads";
import { HoldfastError } from "@holdfast/contract";
import { DeadlinePassed, within } from "../lib/deadline.ts";
import type { SearchOptions } from "../ports/api.ts";
import type { Clock } from "../ports/index.ts";
import type { FoundLines, Patterns, Reply, Request } from "./search-worker.ts";

/**
 * Time limit for one request to the worker: the names in one directory, or the content of one file. It is far above
 * what a sensible pattern needs.
 */
const MATCH_MS = 3_000;
const MEMORY_MB = 128;
/**
 * How many characters of a line are matched against a regular expression. The limit is needed because matching may take
 * quadratic time.
 */
const LINE_MAX = 4_096;

type WantedPatterns = Pick<SearchOptions, "name" | "content" | "regex" | "ignoreCase" | "contextLines">;

/** Runs the patterns of one search in a worker thread. Supports one request at a time. */
export class Matcher implements AsyncDisposable {
  readonly #clock: Clock;
  readonly #signal: AbortSignal;
  readonly #worker: Worker | null;
  #answer: PromiseWithResolvers<Reply> | null = null;
  #failure: unknown = null;

  constructor(clock: Clock, wanted: WantedPatterns, signal: AbortSignal) {
    this.#clock = clock;
    this.#signal = signal;
    const patterns = patternsOf(wanted);
    const isNeeded = patterns.name !== null || patterns.content !== null;
    this.#worker = isNeeded ? this.#start(patterns) : null;
  }

  #start(workerData: Patterns): Worker {
    const worker = new Worker(new URL("./search-worker.ts", import.meta.url), {
      workerData,
      execArgv: [],
      resourceLimits: { maxOldGenerationSizeMb: MEMORY_MB },
    });
    worker.on("message", (reply: Reply) => this.#answer?.resolve(reply));
    worker.on("error", (error: NodeJS.ErrnoException) => {
      this.#failure =
        error.code === "ERR_WORKER_OUT_OF_MEMORY" ? unusable(`it needs more than ${MEMORY_MB} MB`) : error;
      this.#answer?.reject(this.#failure);
    });
    return worker;
  }

  /** Returns which of the paths, relative to the start of the search, match the name pattern. */
  async names(paths: readonly string[]): Promise<boolean[]> {
    const reply = await this.#ask({ paths });
    return reply !== null && "matches" in reply ? reply.matches : paths.map(() => true);
  }

  /** Returns the lines that match the content pattern. The text's buffer is transferred to the worker. */
  async lines(text: Uint8Array<ArrayBuffer>, linesMax: number): Promise<FoundLines> {
    const reply = await this.#ask({ text, linesMax }, [text.buffer]);
    return reply !== null && "lines" in reply ? reply : { lines: [], isCut: false };
  }

  async #ask(request: Request, given: ArrayBuffer[] = []): Promise<Reply | null> {
    if (this.#worker === null) return null;
    if (this.#failure !== null) throw this.#failure;
    const answer = Promise.withResolvers<Reply>();
    this.#answer = answer;
    this.#worker.postMessage(request, given);
    const limit = { ms: MATCH_MS, what: "matching", signal: this.#signal };
    const reply = await within(this.#clock, limit, () => answer.promise).catch((error: unknown) => {
      throw error instanceof DeadlinePassed ? unusable(error.message) : error;
    });
    if ("failure" in reply) throw unusable(reply.failure);
    return reply;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#worker?.terminate();
  }
}

const unusable = (why: string): HoldfastError =>
  new HoldfastError("invalid_request", { message: `The pattern can't be used: ${why}.` });

/** Compiles the patterns. Literal text is escaped to a regular expression. */
function patternsOf(wanted: WantedPatterns): Patterns {
  const { name, content, regex = false, ignoreCase = false, contextLines = 0 } = wanted;
  const patterns: Patterns = { name: name ?? null, content: null };
  if (content === undefined) return patterns;
  const source = regex ? content : RegExp.escape(content);
  const flags = ignoreCase ? "i" : "";
  try {
    new RegExp(source, flags);
  } catch (error) {
    throw unusable(error instanceof Error ? error.message : String(error));
  }
  const lineMax = regex ? LINE_MAX : Number.POSITIVE_INFINITY;
  return { ...patterns, content: { source, flags, lineMax, contextLines } };
}
