import { randomUUID } from "node:crypto";
import type {
  CallOptions,
  Content,
  ExecOptions,
  ExecResult,
  ExecRun,
  Execs,
  OutputChunk,
  OutputOptions,
  Page,
  PageOptions,
  StartOptions,
  StdinOptions,
  TerminalSize,
  WaitOptions,
} from "./api.ts";
import { type Calls, pause } from "./calls.ts";
import { hasEnded } from "./ended.ts";
import { type KnownOfExec, refused } from "./errors.ts";
import { OutputReader } from "./output.ts";
import { backoff } from "./retry.ts";
import { Stdin } from "./stdin.ts";
import type { Exec } from "./types.generated.ts";
import { Waiting } from "./waiting.ts";

/** How long one request waits for the end. Short enough for any proxy; waiting goes on with the next request. */
const FIRST_WAIT_MS = 10_000;
/** What the server may take to see a whole tree dead. */
const CANCEL_WAIT_MS = 60_000;
const NEXT_WAIT_MS = 25_000;
/** A request that only waits is answered in time, or its connection is dead. */
const WAIT_MARGIN_MS = 10_000;

/** An answer that is no end and comes sooner is not one that was waited for. */
const HASTY_MS = 100;

/** Chosen here and not by the server, so that a start whose answer was lost can be sent again. */
const newExecId = (): string => `exe_${randomUUID().replaceAll("-", "")}`;

const execPath = (id: string): string => `/v1/execs/${encodeURIComponent(id)}`;

interface Start {
  sandboxId: string;
  id: string;
  command: string | readonly string[];
  options: StartOptions;
  /** How long the answer may wait for the end; 0: it comes with the start. */
  waitMs: number;
  signal: AbortSignal | undefined;
}

/** What was not given leaves no trace in JSON. */
function start(calls: Calls, { sandboxId, id, command, options, waitMs, signal }: Start): Promise<Exec> {
  const { env, cwd, user, timeoutMs, stdin, openStdin, tty, keepAwake, onWake } = options;
  const what = typeof command === "string" ? { id, command } : { id, argv: command };
  const how = waitMs > 0 ? { waitMs } : { detach: true };
  return calls.json<Exec>({
    method: "POST",
    path: `/v1/sandboxes/${sandboxId}/execs`,
    json: { ...what, env, cwd, user, timeoutMs, stdin, openStdin, tty, keepAwake, onWake, ...how },
    idempotent: true,
    waitMs,
    signal,
  });
}

/** Start and wait in one request: a command that ends within it costs one round trip. */
export async function run(
  calls: Calls,
  sandboxId: string,
  command: string | readonly string[],
  options: ExecOptions,
): Promise<ExecResult> {
  const waiting = new Waiting(options);
  const { signal } = waiting;
  const id = options.id ?? newExecId();
  let exec: Exec | null = null;
  try {
    exec = await start(calls, { sandboxId, id, command, options, waitMs: FIRST_WAIT_MS, signal });
    if (!hasEnded(exec)) {
      const learn = (news: Exec) => {
        exec = news;
      };
      await untilEnded(calls, id, learn, signal);
    }
  } catch (error) {
    throw waiting.explain(error, "waiting for its end", { id, exec, cursor: null }, whereIs(calls, id));
  }
  return resultOf(calls, exec);
}

const whereIs = (calls: Calls, id: string) => calls.where({ method: "GET", path: execPath(id) });

function resultOf(calls: Calls, exec: Exec): ExecResult {
  if (exec.status === "refused") throw refused(whereIs(calls, exec.id), exec);
  const { stdout, stderr } = exec;
  if (stdout !== undefined && stderr !== undefined) return exec as ExecResult;
  return { ...exec, stdout: stdout ?? "", stderr: stderr ?? "" };
}

/** Asks until the exec has ended, and tells what it learns. One that answers before it has waited is asked less often. */
async function untilEnded(
  calls: Calls,
  id: string,
  learn: (exec: Exec) => void,
  signal: AbortSignal | undefined,
): Promise<void> {
  for (let hasty = 0; ; ) {
    const asked = performance.now();
    const exec = await waitForEnd(calls, id, signal);
    learn(exec);
    if (hasEnded(exec)) return;
    hasty = performance.now() - asked < HASTY_MS ? hasty + 1 : 0;
    if (hasty > 0) await pause(backoff(hasty, Math.random()), signal);
  }
}

/** The exec when it has ended, or as it is after a while. */
const waitForEnd = (calls: Calls, id: string, signal: AbortSignal | undefined): Promise<Exec> =>
  calls.json({
    method: "GET",
    path: execPath(id),
    query: { waitMs: NEXT_WAIT_MS },
    idempotent: true,
    waiting: true,
    waitMs: NEXT_WAIT_MS,
    silenceMs: NEXT_WAIT_MS + WAIT_MARGIN_MS,
    signal,
  });

export class ExecsOf implements Execs {
  readonly #calls: Calls;
  readonly #sandboxId: string;

  constructor(calls: Calls, sandboxId: string) {
    this.#calls = calls;
    this.#sandboxId = sandboxId;
  }

  async start(command: string | readonly string[], options: StartOptions = {}): Promise<ExecRun> {
    const waiting = new Waiting(options);
    const { signal } = waiting;
    const id = options.id ?? newExecId();
    const sandboxId = this.#sandboxId;
    try {
      const exec = await start(this.#calls, { sandboxId, id, command, options, waitMs: 0, signal });
      // An id of the caller's may be that of an exec which has taken stdin already.
      const written = options.id === undefined ? Buffer.byteLength(options.stdin ?? "") : null;
      return new Run(this.#calls, exec, written);
    } catch (error) {
      const known = { id, exec: null, cursor: null };
      throw waiting.explain(error, "starting it", known, whereIs(this.#calls, id));
    }
  }

  get(id: string, options: CallOptions = {}): Promise<ExecRun> {
    return getRun(this.#calls, id, options);
  }

  list({ signal, ...query }: PageOptions = {}): Promise<Page<Exec>> {
    return this.#calls.json({
      method: "GET",
      path: `/v1/sandboxes/${this.#sandboxId}/execs`,
      query,
      idempotent: true,
      signal,
    });
  }
}

export async function getRun(calls: Calls, id: string, { signal }: CallOptions): Promise<ExecRun> {
  const exec = await calls.json<Exec>({ method: "GET", path: execPath(id), idempotent: true, signal });
  return new Run(calls, exec, null);
}

class Run implements ExecRun {
  readonly #calls: Calls;
  readonly #stdin: Stdin;
  #exec: Exec;
  #cursor: string | null = null;

  constructor(calls: Calls, exec: Exec, stdinOffset: number | null) {
    this.#calls = calls;
    this.#exec = exec;
    this.#stdin = new Stdin(calls, execPath(exec.id), stdinOffset);
  }

  get id(): string {
    return this.#exec.id;
  }
  get info(): Exec {
    return this.#exec;
  }
  get cursor(): string | null {
    return this.#cursor;
  }

  async result(options: WaitOptions = {}): Promise<ExecResult> {
    const waiting = new Waiting(options);
    try {
      // What the handle knows of an ended exec may be without its output, so the ledger is asked at least once.
      await untilEnded(this.#calls, this.id, this.#learn, waiting.signal);
    } catch (error) {
      throw waiting.explain(error, "waiting for its end", this.#known(), whereIs(this.#calls, this.id));
    }
    return resultOf(this.#calls, this.#exec);
  }

  async *output(options: OutputOptions = {}): AsyncGenerator<OutputChunk, void, undefined> {
    const waiting = new Waiting(options);
    const learns = {
      exec: this.#learn,
      cursor: (cursor: string) => {
        this.#cursor = cursor;
      },
      suspended: (suspended: boolean) => {
        if (this.#exec.suspended !== suspended) this.#exec = { ...this.#exec, suspended };
      },
    };
    const reader = new OutputReader(this.#calls, `${execPath(this.id)}/output`, options, learns);
    try {
      yield* reader.chunks(waiting.signal);
    } catch (error) {
      throw waiting.explain(error, "reading its output", this.#known(), whereIs(this.#calls, this.id));
    }
  }

  cancel({ signal }: CallOptions = {}): Promise<Exec> {
    return this.#ask("DELETE", "", undefined, { idempotent: true, waitMs: CANCEL_WAIT_MS, signal });
  }

  signal(name: string, { signal }: CallOptions = {}): Promise<Exec> {
    return this.#ask("POST", "/signal", { signal: name }, { idempotent: false, signal });
  }

  resize({ cols, rows }: TerminalSize, { signal }: CallOptions = {}): Promise<Exec> {
    return this.#ask("POST", "/resize", { cols, rows }, { idempotent: true, signal });
  }

  async #ask(
    method: "POST" | "DELETE",
    path: string,
    json: unknown,
    how: { idempotent: boolean; waitMs?: number; signal: AbortSignal | undefined },
  ): Promise<Exec> {
    this.#exec = await this.#calls.json<Exec>({ method, path: execPath(this.id) + path, json, ...how });
    return this.#exec;
  }

  writeStdin(content: Content, options: StdinOptions = {}): Promise<void> {
    return this.#feed(options, (how) => this.#stdin.write(content, how));
  }

  write(content: Content, options: StdinOptions = {}): Promise<void> {
    return this.#feed(options, (how) => this.#stdin.append(content, how));
  }

  async #feed(
    options: StdinOptions,
    work: (how: { end: boolean; signal: AbortSignal | undefined }) => Promise<void>,
  ): Promise<void> {
    const waiting = new Waiting(options);
    try {
      await work({ end: options.end ?? false, signal: waiting.signal });
    } catch (error) {
      // A write that failed otherwise says itself whether it arrived, which is more than is known of the exec.
      if (!waiting.isOver(error)) throw error;
      throw waiting.explain(error, "writing to it", this.#known(), whereIs(this.#calls, this.id));
    }
  }

  readonly #learn = (exec: Exec): void => {
    this.#exec = exec;
  };

  #known(): KnownOfExec {
    return { id: this.id, exec: this.#exec, cursor: this.#cursor };
  }
}
