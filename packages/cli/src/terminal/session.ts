import { ConflictError, ConnectionError, type ExecRun, type TerminalSize } from "@holdfast/sdk";
import { printError, writeTo } from "../output/streams.ts";
import type { DetachKeys } from "./detach-keys.ts";
import { Keyboard } from "./keyboard.ts";
import { RawMode, terminalSize } from "./terminal.ts";

/** Connection losses shorter than this are not shown to the user. */
const NOTICE_AFTER_MS = 1_000;

interface SessionOptions {
  /** Whether typed input is sent to the command. */
  input: boolean;
  detachKeys: DetachKeys;
  /** Where to resume, if part of the output was already shown. */
  cursor?: string | undefined;
  signal: AbortSignal;
}

/**
 * Connects the local terminal to an exec's terminal until the command ends or the user detaches. The session has no
 * state on the server: output is read from the journal by cursor, and input is sent in requests. So the session
 * survives a restart of the server. The local terminal is always restored.
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

/**
 * Sends typed input. Input that may have arrived is not sent again, so that no key is typed twice. Stops when the
 * output ends.
 */
async function type(run: ExecRun, keyboard: Keyboard, signal: AbortSignal): Promise<void> {
  for (let typed = await keyboard.take(); typed !== null; typed = await keyboard.take()) {
    try {
      await run.write(typed, { signal });
    } catch (error) {
      if (signal.aborted || error instanceof ConflictError) return;
      const isUnsure = error instanceof ConnectionError && error.dispatched !== "no";
      notify(
        isUnsure ? "the last input may not have arrived" : `input not sent: ${(error as Error).message}`,
      );
    }
  }
}

/** Prints a message on a line of its own, because a remote program may have left the terminal's cursor anywhere. */
export const notify = (text: string): void =>
  printError(process.stderr.isTTY ? `\r\nholdfast: ${text}\r\n` : `holdfast: ${text}\n`);

/** Forwards size changes of the local terminal, one request at a time; the last size wins. */
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
      // A failed resize is ignored: a wrong size should not end the session, and the next size change sends the new
      // size.
      await this.#run.resize(size).catch(() => {});
    }
    this.#isBusy = false;
  }

  [Symbol.dispose](): void {
    process.stdout.off("resize", this.#changed);
    this.#wanted = null;
  }
}

/** Tells the user when the connection is lost for longer than a moment, and when it is back. */
export class ConnectionNotice implements Disposable {
  #timer: NodeJS.Timeout | undefined;
  #isReported = false;

  readonly onConnection = (state: "lost" | "back"): void => {
    clearTimeout(this.#timer);
    if (state === "lost") {
      this.#timer = setTimeout(() => {
        this.#isReported = true;
        notify("reconnecting…");
      }, NOTICE_AFTER_MS);
    } else if (this.#isReported) {
      this.#isReported = false;
      notify("connected");
    }
  };

  [Symbol.dispose](): void {
    clearTimeout(this.#timer);
  }
}
