import type {
  CallOptions,
  Page,
  PageOptions,
  ProcessChunk,
  Processes,
  ProcessHandle,
  ProcessOptions,
  ProcessOutputOptions,
  WaitOptions,
} from "../api.ts";
import { checkOptions, HoldfastError, ProcessNotReadyError } from "../errors.ts";
import { type Calls, pause } from "../transport/calls.ts";
import { backoff } from "../transport/retry.ts";
import type { Exec, Process, ProcessList, ProcessStatus } from "../types.generated.ts";
import { getRun, OUTPUT_OPTIONS } from "./execs.ts";
import { WAIT_OPTIONS, Waiting } from "./waiting.ts";

/**
 * How long one request waits for the process. The wait is shorter than the timeouts of proxies. If the process has not
 * reached the awaited state then, the next request continues to wait.
 */
const WAIT_MS = 25_000;
const WAIT_MARGIN_MS = 10_000;
/**
 * How long a start, stop or restart may take on the server: it may have to wake the sandbox, and then stop a process
 * tree or start the next run.
 */
const ORDER_WAIT_MS = 60_000;
/**
 * A request asks the server to wait until the process reaches a state. If the response arrives within this time and the
 * process has not reached the state, the server did not wait. The client then pauses before the next request.
 */
const HASTY_MS = 100;

const OVER: ReadonlySet<ProcessStatus> = new Set(["exited", "given_up", "stopped", "lost"]);
/**
 * Returns whether the process stays in its state until a request changes it: it has ended, or its sandbox failed and
 * must be restarted.
 */
const isStill = ({ status, cause }: Process): boolean =>
  OVER.has(status) || (status === "waiting" && cause?.code === "sandbox_failed");

export class ProcessesOf implements Processes {
  readonly #calls: Calls;
  readonly #base: string;

  constructor(calls: Calls, sandboxId: string) {
    this.#calls = calls;
    this.#base = `/v1/sandboxes/${sandboxId}/processes`;
  }

  /** Starts a process. If the same request is sent again, the process that the first request started is returned. */
  async start(
    name: string,
    command: string | readonly string[],
    { signal, ...options }: ProcessOptions = {},
  ): Promise<ProcessHandle> {
    const what = typeof command === "string" ? { command } : { argv: command };
    const process = await this.#calls.json<Process>({
      method: "POST",
      path: this.#base,
      query: { waitMs: 0 },
      json: { name, ...what, ...options },
      idempotent: true,
      waitMs: ORDER_WAIT_MS,
      signal,
    });
    return new Handle(this.#calls, this.#base, process);
  }

  async list({ signal, ...unknown }: CallOptions = {}): Promise<Process[]> {
    const call = { method: "GET", path: this.#base, idempotent: true, signal, unknown } as const;
    return (await this.#calls.json<ProcessList>(call)).items;
  }

  async get(nameOrId: string, { signal, ...unknown }: CallOptions = {}): Promise<ProcessHandle> {
    const path = pathOf(this.#base, nameOrId);
    return new Handle(this.#calls, this.#base, await show(this.#calls, path, 0, signal, unknown));
  }

  stop(nameOrId: string, options: CallOptions = {}): Promise<Process> {
    return stop(this.#calls, pathOf(this.#base, nameOrId), options);
  }

  restart(nameOrId: string, options: CallOptions = {}): Promise<Process> {
    return restart(this.#calls, pathOf(this.#base, nameOrId), options);
  }
}

const { cursor: _cursor, ...PROCESS_OUTPUT_OPTIONS } = OUTPUT_OPTIONS;

const pathOf = (base: string, nameOrId: string): string => `${base}/${encodeURIComponent(nameOrId)}`;

const show = (
  calls: Calls,
  path: string,
  waitMs: number,
  signal: AbortSignal | undefined,
  unknown?: object,
): Promise<Process> =>
  calls.json({
    method: "GET",
    path,
    query: { waitMs },
    idempotent: true,
    ...(waitMs > 0 && { waiting: true, waitMs, silenceMs: waitMs + WAIT_MARGIN_MS }),
    signal,
    ...(unknown !== undefined && { unknown }),
  });

const stop = (calls: Calls, path: string, { signal, ...unknown }: CallOptions): Promise<Process> =>
  calls.json({ method: "DELETE", path, idempotent: true, waitMs: ORDER_WAIT_MS, signal, unknown });

const restart = (calls: Calls, path: string, { signal, ...unknown }: CallOptions): Promise<Process> =>
  calls.json({
    method: "POST",
    path: `${path}/restart`,
    query: { waitMs: 0 },
    idempotent: false,
    waitMs: ORDER_WAIT_MS,
    signal,
    unknown,
  });

/**
 * A handle that refers to its process by id, because an id always means the same process, while a name may be reused.
 */
class Handle implements ProcessHandle {
  readonly #calls: Calls;
  readonly #path: string;
  #process: Process;

  constructor(calls: Calls, base: string, process: Process) {
    this.#calls = calls;
    this.#path = pathOf(base, process.id);
    this.#process = process;
  }

  get id(): string {
    return this.#process.id;
  }
  get name(): string {
    return this.#process.name;
  }
  get info(): Process {
    return this.#process;
  }

  refresh({ signal, ...unknown }: CallOptions = {}): Promise<Process> {
    return this.#learn(show(this.#calls, this.#path, 0, signal, unknown));
  }

  async ready(options: WaitOptions = {}): Promise<Process> {
    checkOptions(options, WAIT_OPTIONS, this.#calls.where({ method: "GET", path: this.#path }));
    const waiting = new Waiting(options);
    try {
      for (let hasty = 0; ; ) {
        const asked = performance.now();
        const process = await this.#learn(show(this.#calls, this.#path, WAIT_MS, waiting.signal));
        if (process.status === "ready") return process;
        if (process.status === "unready" || isStill(process)) throw this.#notReady(undefined);
        hasty = performance.now() - asked < HASTY_MS ? hasty + 1 : 0;
        if (hasty > 0) await pause(backoff(hasty, Math.random()), waiting.signal);
      }
    } catch (error) {
      const isGivenUp = waiting.isOver(error) || (error instanceof HoldfastError && error.retryable);
      throw isGivenUp && !(error instanceof ProcessNotReadyError) ? this.#notReady(error) : error;
    }
  }

  runs({ signal, ...query }: PageOptions = {}): Promise<Page<Exec>> {
    const path = `${this.#path}/runs`;
    return this.#calls.json({ method: "GET", path, query, idempotent: true, signal });
  }

  async *output(options: ProcessOutputOptions = {}): AsyncGenerator<ProcessChunk, void, undefined> {
    checkOptions(options, PROCESS_OUTPUT_OPTIONS, this.#calls.where({ method: "GET", path: this.#path }));
    const { signal } = options;
    const isFollowed = options.follow ?? true;
    for (let run = (await this.refresh({ signal })).runs; ; run += 1) {
      const execId = `${this.id}-${run}`;
      const exec = await getRun(this.#calls, execId, { signal });
      for await (const { stream, data, text, cursor, at, dropped } of exec.output(options))
        yield { stream, data, text, cursor, at, dropped, execId };
      if (!isFollowed || !(await this.#hasNext(run, signal))) return;
    }
  }

  /** Waits until it is certain whether another run of the process follows the given run. Returns true if one does. */
  async #hasNext(run: number, signal: AbortSignal | undefined): Promise<boolean> {
    for (let tries = 1; ; tries += 1) {
      const process = await this.refresh({ signal });
      if (process.runs > run) return true;
      if (isStill(process)) return false;
      await pause(backoff(tries, Math.random()), signal);
    }
  }

  stop(options: CallOptions = {}): Promise<Process> {
    return this.#learn(stop(this.#calls, this.#path, options));
  }

  restart(options: CallOptions = {}): Promise<Process> {
    return this.#learn(restart(this.#calls, this.#path, options));
  }

  async #learn(answer: Promise<Process>): Promise<Process> {
    this.#process = await answer;
    return this.#process;
  }

  #notReady(cause: unknown): ProcessNotReadyError {
    const process = this.#process;
    const { name, status, sandboxId, execId } = process;
    const why = process.cause === null ? "" : `: ${process.cause.message}`;
    const hint = hintOf(process);
    return new ProcessNotReadyError(
      {
        ...this.#calls.where({ method: "GET", path: this.#path }),
        code: "process_not_ready",
        message: `Process ${name} is ${status}${why}`,
        hint,
        retryable: !isStill(process),
        dispatched: "yes",
        status: 200,
        body: "",
        sandboxId,
        execId,
        cause: cause ?? process.cause ?? undefined,
      },
      process,
    );
  }
}

function hintOf(process: Process): string {
  if (OVER.has(process.status)) return "The process has ended; see the output of its last run.";
  return isStill(process)
    ? "The sandbox has failed; restart it to start the process again."
    : "The process is still active and may become ready later.";
}
