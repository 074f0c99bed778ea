import { Worker } from "node:worker_threads";
import { HoldfastError } from "@holdfast/contract";
import type { SearchOptions } from "./api.ts";
import { DeadlinePassed, within } from "./clock.ts";
import type { Asked, FoundLines, Patterns, Told } from "./pattern-worker.ts";
import type { Clock } from "./ports.ts";

/** No pattern that makes sense takes nearly as long for one file or directory, or as much memory. */
const MATCH_MS = 3_000;
const MEMORY_MB = 128;
/** What a regular expression sees of a line: it may well take the square of it. */
const LINE_MAX = 4_096;

export type WantedPatterns = Pick<
  SearchOptions,
  "name" | "content" | "regex" | "ignoreCase" | "contextLines"
>;

/** The patterns of one search, in a thread of their own that ends with it. To be asked one question at a time. */
export class Matcher implements AsyncDisposable {
  readonly #clock: Clock;
  readonly #signal: AbortSignal;
  readonly #worker: Worker | null;
  #answer: PromiseWithResolvers<Told> | null = null;
  #failure: unknown = null;

  constructor(clock: Clock, wanted: WantedPatterns, signal: AbortSignal) {
    this.#clock = clock;
    this.#signal = signal;
    const patterns = patternsOf(wanted);
    const isNeeded = patterns.name !== null || patterns.content !== null;
    this.#worker = isNeeded ? this.#started(patterns) : null;
  }

  #started(workerData: Patterns): Worker {
    const worker = new Worker(new URL("./pattern-worker.ts", import.meta.url), {
      workerData,
      execArgv: [],
      resourceLimits: { maxOldGenerationSizeMb: MEMORY_MB },
    });
    worker.on("message", (told: Told) => this.#answer?.resolve(told));
    worker.on("error", (error: NodeJS.ErrnoException) => {
      this.#failure =
        error.code === "ERR_WORKER_OUT_OF_MEMORY" ? unfit(`it takes more than ${MEMORY_MB} MB`) : error;
      this.#answer?.reject(this.#failure);
    });
    return worker;
  }

  /** Which of the paths, relative to where the search begins, have a name that is looked for. */
  async names(paths: readonly string[]): Promise<boolean[]> {
    const told = await this.#ask({ paths });
    return told !== null && "matches" in told ? told.matches : paths.map(() => true);
  }

  /** Where the content is found that is looked for. The memory of the text is given away. */
  async lines(text: Uint8Array<ArrayBuffer>, linesMax: number): Promise<FoundLines> {
    const told = await this.#ask({ text, linesMax }, [text.buffer]);
    return told !== null && "lines" in told ? told : { lines: [], isCut: false };
  }

  async #ask(asked: Asked, given: ArrayBuffer[] = []): Promise<Told | null> {
    if (this.#worker === null) return null;
    if (this.#failure !== null) throw this.#failure;
    const answer = Promise.withResolvers<Told>();
    this.#answer = answer;
    this.#worker.postMessage(asked, given);
    const limit = { ms: MATCH_MS, what: "matching", signal: this.#signal };
    const told = await within(this.#clock, limit, () => answer.promise).catch((error: unknown) => {
      throw error instanceof DeadlinePassed ? unfit(error.message) : error;
    });
    if ("failure" in told) throw unfit(told.failure);
    return told;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#worker?.terminate();
  }
}

const unfit = (why: string): HoldfastError =>
  new HoldfastError("invalid_request", { message: `The pattern can't be searched for: ${why}.` });

/** Text that is looked for as it is, is a regular expression too. */
function patternsOf(wanted: WantedPatterns): Patterns {
  const { name, content, regex = false, ignoreCase = false, contextLines = 0 } = wanted;
  const patterns: Patterns = { name: name ?? null, content: null };
  if (content === undefined) return patterns;
  const source = regex ? content : RegExp.escape(content);
  const flags = ignoreCase ? "i" : "";
  try {
    new RegExp(source, flags);
  } catch (error) {
    throw unfit(error instanceof Error ? error.message : String(error));
  }
  const lineMax = regex ? LINE_MAX : Number.POSITIVE_INFINITY;
  return { ...patterns, content: { source, flags, lineMax, contextLines } };
}
