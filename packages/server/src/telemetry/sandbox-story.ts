/**
 * Lists the latest events and output lines of a sandbox together: the first thing to read when investigating a sandbox.
 * Reading the list wakes no sandbox, and its cost is bounded. A journal can only be read from its beginning, so the
 * journal of a command with much output is read up to a limit, and a line in the list marks where reading stopped.
 */
import { StringDecoder } from "node:string_decoder";
import {
  causeOf,
  type Event,
  type Exec,
  isHoldfastError,
  type SandboxStory,
  type StoryLine,
} from "@holdfast/contract";
import type { EngineApi, OutputRecord } from "@holdfast/engine";
import { timeWithin } from "../streams/frames.ts";

/** Number of newest execs whose output is read. */
const EXECS = 8;
/** Maximum total number of bytes that are read from the output of the newest execs. */
const READ_BYTES = 16 * 1_048_576;
const READ_MS = 3_000;
/** Maximum number of characters of a line; longer lines are truncated. */
const LINE_CHARACTERS = 2_000;

/** Returns the last `limit` lines of a sandbox's story, oldest first. */
export async function readSandboxStory(
  engine: EngineApi,
  ref: string,
  { limit }: { limit: number },
  signal: AbortSignal,
): Promise<SandboxStory> {
  const { id, lastActivityAt } = await engine.sandboxes.get(ref);
  const [events, execs] = await Promise.all([
    engine.events({ ref: id, order: "newest", limit }),
    engine.execs.list(id, { limit: EXECS }),
  ]);
  const lines = events.items.map(lineOfEvent);
  const budget = { bytes: READ_BYTES, until: AbortSignal.timeout(READ_MS) };
  for (const exec of execs.items) lines.push(...(await linesOf(engine, exec, { limit, budget, signal })));
  lines.sort((one, other) => Date.parse(one.at) - Date.parse(other.at));
  return { sandboxId: id, lastActivityAt, lines: lines.slice(-limit) };
}

const lineOfEvent = ({ at, type, message, execId }: Event): StoryLine => ({
  at,
  kind: "event",
  text: `${type}: ${message}`,
  execId,
});

interface Reading {
  limit: number;
  budget: { bytes: number; until: AbortSignal };
  signal: AbortSignal;
}

/**
 * Returns the last output lines of one exec. If the output can't be read, a line in its place says so, and the other
 * parts of the story are still shown.
 */
async function linesOf(
  engine: EngineApi,
  exec: Exec,
  { limit, budget, signal }: Reading,
): Promise<StoryLine[]> {
  const lines = new Lines(exec, limit);
  const either = AbortSignal.any([signal, budget.until]);
  try {
    for await (const record of engine.execs.output(exec.id, { follow: false, signal: either })) {
      if (!("data" in record)) continue;
      lines.take(record);
      budget.bytes -= record.data.length;
      if (budget.bytes <= 0) return lines.end("More output follows; it is not read here.");
    }
    return lines.end();
  } catch (error) {
    signal.throwIfAborted();
    if (budget.until.aborted) return lines.end("The output could not be read in time.");
    if (!isHoldfastError(error)) throw error;
    return lines.end(`The output could not be read: ${causeOf(error).message}`);
  }
}

/** Collects the last lines of one exec. The time of a line is that of its first byte. */
class Lines {
  readonly #exec: Exec;
  readonly #limit: number;
  #lines: StoryLine[] = [];
  readonly #begun = { stdout: new BegunLine(), stderr: new BegunLine() };

  constructor(exec: Exec, limit: number) {
    this.#exec = exec;
    this.#limit = limit;
  }

  take({ type, at: time, data }: Extract<OutputRecord, { data: Uint8Array }>): void {
    const at = new Date(timeWithin(time)).toISOString();
    const begun = this.#begun[type];
    const [first = "", ...others] = begun.decoder.write(Buffer.from(data)).split("\n");
    begun.add(first, at);
    for (const text of others) {
      this.#push(type, begun.at, begun.text);
      begun.restart(text, at);
    }
  }

  #push(kind: StoryLine["kind"], at: string, text: string): void {
    this.#lines.push({ at, kind, text: text.replace(/\r$/, ""), execId: this.#exec.id });
    if (this.#lines.length > 2 * this.#limit) this.#lines = this.#lines.slice(-this.#limit);
  }

  /** Adds the incomplete last lines of stdout and stderr, and the remark, if any. Returns the exec's last lines. */
  end(remark?: string): StoryLine[] {
    for (const type of ["stdout", "stderr"] as const) {
      const { at, text } = this.#begun[type];
      if (text !== "") this.#push(type, at, text);
    }
    const { startedAt, createdAt } = this.#exec;
    if (remark !== undefined) this.#push("event", this.#lines.at(-1)?.at ?? startedAt ?? createdAt, remark);
    return this.#lines.slice(-this.#limit);
  }
}

/** A line that has not been read to its end yet. */
class BegunLine {
  readonly decoder = new StringDecoder("utf8");
  text = "";
  at = "";

  add(text: string, at: string): void {
    if (this.text === "") this.at = at;
    this.text = cut(this.text + text);
  }

  restart(text: string, at: string): void {
    this.text = cut(text);
    this.at = at;
  }
}

const cut = (text: string): string =>
  text.length > LINE_CHARACTERS ? `${text.slice(0, LINE_CHARACTERS - 1)}…` : text;
