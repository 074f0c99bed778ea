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
} from "../api.ts";
import { checkOptions, type KnownOfExec, refused } from "../errors.ts";
import { type Call, type Calls, pause } from "../transport/calls.ts";
import { backoff } from "../transport/retry.ts";
import type { Exec } from "../types.generated.ts";
import { hasEnded } from "./ended.ts";
import { OutputReader } from "./output.ts";
import { Stdin } from "./stdin.ts";
import { WAIT_OPTIONS, Waiting } from "./waiting.ts";

/**
 * How long the first request waits for the exec's end. The wait is shorter than the timeouts of proxies. If the exec
 * has not ended then, the next request continues to wait.
 */
const FIRST_WAIT_MS = 10_000;
/** How long the server may take to kill a process tree. */
const CANCEL_WAIT_MS = 60_000;
const NEXT_WAIT_MS = 25_000;
/**
 * Time that a request may take in addition to the wait that it asks for. If no response has arrived by then, the
 * connection is considered broken.
 */
const WAIT_MARGIN_MS = 10_000;

/**
 * A request asks the server to wait for the exec's end. If the response arrives within this time and the exec has not
 * ended, the server did not wait. The client then pauses before the next request.
 */
const HASTY_MS = 100;

/** Generates the exec id on the client, so that a start whose response was lost can be sent again. */
const newExecId = (): string => `exe_${randomUUID().replaceAll("-", "")}`;

const execPath = (id: string): string => `/v1/execs/${encodeURIComponent(id)}`;

interface Start {
  sandboxId: string;
  id: string;
  command: string | readonly string[];
  options: StartOptions;
  /**
   * How long the server may wait for the exec's end before it responds; 0 means that it responds when the exec has
   * started.
   */
  waitMs: number;
  signal: AbortSignal | undefined;
}

/** Starts an exec. Options that are undefined are omitted from the JSON. */
function start(calls: Calls, { sandboxId, id, command, options, waitMs, signal }: Start): Promise<Exec> {
  const { env, cwd, user, timeoutMs, stdin, openStdin, tty, keepAwake, onWake, awaitReader, ...rest } =
    options;
  const { id: _id, signal: _signal, giveUpAfterMs: _giveUpAfterMs, ...unknown } = rest;
  const what = typeof command === "string" ? { id, command } : { id, argv: command };
  const how = waitMs > 0 ? { waitMs } : { detach: true };
  return calls.json<Exec>({
    method: "POST",
    path: `/v1/sandboxes/${sandboxId}/execs`,
    json: {
      ...what,
      env,
      cwd,
      user,
      timeoutMs,
      stdin,
      openStdin,
      tty,
      keepAwake,
      onWake,
      awaitReader,
      ...how,
    },
    idempotent: true,
    waitMs,
    signal,
    unknown,
  });
}

/** Starts a command and waits for its end in the same request, so that a short command costs one round trip. */
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

export const OUTPUT_OPTIONS = {
  ...WAIT_OPTIONS,
  cursor: true,
  follow: true,
  stream: true,
  onDropped: true,
  hold: true,
  onConnection: true,
} as const;

const STDIN_OPTIONS = { ...WAIT_OPTIONS, end: true } as const;

const whereIs = (calls: Calls, id: string) => calls.where({ method: "GET", path: execPath(id) });

function resultOf(calls: Calls, exec: Exec): ExecResult {
  if (exec.status === "refused") throw refused(whereIs(calls, exec.id), exec);
  const { stdout, stderr } = exec;
  if (stdout !== undefined && stderr !== undefined) return exec as ExecResult;
  return { ...exec, stdout: stdout ?? "", stderr: stderr ?? "" };
}

/**
 * Polls until the exec has ended, and reports each state to the caller. Waits between polls if the server responds
 * without waiting.
 */
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

/** Returns the exec when it has ended, or its current state when the server's wait times out. */
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
      // If the caller chose the id, the exec may already exist and may have received stdin. The number of bytes written
      // to stdin is then unknown.
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

export async function getRun(
  calls: Calls,
  id: string,
  { signal, ...unknown }: CallOptions,
): Promise<ExecRun> {
  const exec = await calls.json<Exec>({
    method: "GET",
    path: execPath(id),
    idempotent: true,
    signal,
    unknown,
  });
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
    checkOptions(options, WAIT_OPTIONS, whereIs(this.#calls, this.id));
    const waiting = new Waiting(options);
    try {
      // The server is asked even if the exec is known to have ended, because the handle's state may lack the output.
      await untilEnded(this.#calls, this.id, this.#learn, waiting.signal);
    } catch (error) {
      throw waiting.explain(error, "waiting for its end", this.#known(), whereIs(this.#calls, this.id));
    }
    return resultOf(this.#calls, this.#exec);
  }

  async *output(options: OutputOptions = {}): AsyncGenerator<OutputChunk, void, undefined> {
    checkOptions(options, OUTPUT_OPTIONS, whereIs(this.#calls, this.id));
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

  cancel({ signal, ...unknown }: CallOptions = {}): Promise<Exec> {
    return this.#ask("DELETE", "", undefined, { idempotent: true, waitMs: CANCEL_WAIT_MS, signal, unknown });
  }

  signal(name: string, { signal, ...unknown }: CallOptions = {}): Promise<Exec> {
    return this.#ask("POST", "/signal", { signal: name }, { idempotent: false, signal, unknown });
  }

  resize({ cols, rows, ...fields }: TerminalSize, { signal, ...options }: CallOptions = {}): Promise<Exec> {
    const unknown = { ...fields, ...options };
    return this.#ask("POST", "/resize", { cols, rows }, { idempotent: true, signal, unknown });
  }

  async #ask(
    method: "POST" | "DELETE",
    path: string,
    json: unknown,
    how: Pick<Call, "idempotent" | "waitMs" | "signal" | "unknown">,
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
    checkOptions(options, STDIN_OPTIONS, whereIs(this.#calls, this.id));
    const waiting = new Waiting(options);
    try {
      await work({ end: options.end ?? false, signal: waiting.signal });
    } catch (error) {
      // If waiting was not given up, the write itself failed, and `dispatched` of this error says whether the bytes may
      // have arrived.
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
