import { ConflictError, ConnectionError, type ExecRun, type TerminalSize } from "@holdfast/sdk";
import type { DetachKeys } from "./detach-keys.ts";
import { Keyboard } from "./keyboard.ts";
import { writeTo } from "./pipe.ts";
import { RawMode, terminalSize } from "./terminal.ts";

/** What is back sooner is not worth a line. */
const NOTICE_AFTER_MS = 1_000;

export interface SessionOptions {
  /** Whether what is typed here goes there. */
  input: boolean;
  detachKeys: DetachKeys;
  /** Where to go on, for an exec of which something was shown already. */
  cursor?: string | undefined;
  signal: AbortSignal;
}

/**
 * Shows a sandbox's terminal on ours until its command ends, or the user leaves it running. The session is nothing but its
 * exec: output comes from the journal by cursor and what is typed goes by requests, so that it outlives a server that
 * restarts. Whatever happens, our own terminal is given back as it was.
 */
export async function converse(run: ExecRun, options: SessionOptions): Promise<"ended" | "detached"> {
  const detached = new AbortController();
  const signal = AbortSignal.any([options.signal, detached.signal]);
  using _raw = options.input ? new RawMode() : null;
  using _size = new SizeWatch(run);
  using keyboard = options.input ? new Keyboard(options.detachKeys, () => detached.abort()) : null;
  using connection = new ConnectionNotice();
  if (keyboard !== null) void type(run, keyboard, signal);
  try {
    const { onConnection } = connection;
    const output = run.output({ cursor: options.cursor, onDropped: "skip", onConnection, signal });
    for await (const { data } of output) await writeTo("stdout", data, signal);
    return "ended";
  } catch (error) {
    if (detached.signal.aborted && !options.signal.aborted) return "detached";
    throw error;
  }
}

/** Keys that may have arrived are not sent again: none is ever typed twice. The output decides when the session is over. */
async function type(run: ExecRun, keyboard: Keyboard, signal: AbortSignal): Promise<void> {
  for (let typed = await keyboard.take(); typed !== null; typed = await keyboard.take()) {
    try {
      await run.write(typed, { signal });
    } catch (error) {
      if (signal.aborted || error instanceof ConflictError) return;
      const isUnsure = error instanceof ConnectionError && error.dispatched !== "no";
      say(isUnsure ? "what was typed last may not have arrived" : `not typed: ${(error as Error).message}`);
    }
  }
}

/** A line of its own on a terminal that someone else writes to. */
const say = (text: string): void => void process.stderr.write(`\r\nholdfast: ${text}\r\n`);

/** Passes the size of our terminal on. One request at a time, and the last size wins. */
class SizeWatch implements Disposable {
  readonly #run: ExecRun;
  #wanted: TerminalSize | null = null;
  #isBusy = false;
  readonly #changed = (): void => {
    this.#wanted = terminalSize();
    if (!this.#isBusy) void this.#pass();
  };

  constructor(run: ExecRun) {
    this.#run = run;
    process.stdout.on("resize", this.#changed);
  }

  async #pass(): Promise<void> {
    this.#isBusy = true;
    for (let size = this.#wanted; size !== null; size = this.#wanted) {
      this.#wanted = null;
      // Where it can't be said, the next one may: a wrong size is no reason to end a session.
      await this.#run.resize(size).catch(() => {});
    }
    this.#isBusy = false;
  }

  [Symbol.dispose](): void {
    process.stdout.off("resize", this.#changed);
    this.#wanted = null;
  }
}

/** Says so where the connection stays away, and that it is back. */
export class ConnectionNotice implements Disposable {
  #timer: NodeJS.Timeout | undefined;
  #isSaid = false;

  readonly onConnection = (state: "lost" | "back"): void => {
    clearTimeout(this.#timer);
    if (state === "lost") {
      this.#timer = setTimeout(() => {
        this.#isSaid = true;
        say("reconnecting…");
      }, NOTICE_AFTER_MS);
    } else if (this.#isSaid) {
      this.#isSaid = false;
      say("connected");
    }
  };

  [Symbol.dispose](): void {
    clearTimeout(this.#timer);
  }
}
