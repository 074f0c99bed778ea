import { randomBytes } from "node:crypto";
import type {
  CallOptions,
  ExecOptions,
  ExecResult,
  ExecRun,
  Execs,
  OutputChunk,
  OutputOptions,
  Page,
  PageOptions,
  StartOptions,
} from "./api.ts";
import { type Calls, pause } from "./calls.ts";
import { ConnectionError, refused, unreachable } from "./errors.ts";
import { Chunker, recordsOf } from "./output.ts";
import { backoff } from "./retry.ts";
import type { Exec, ExecStatus, StartExec } from "./types.generated.ts";

/** How long one request waits for the end. Short enough for any proxy; waiting goes on with the next request. */
const FIRST_WAIT_MS = 10_000;
const NEXT_WAIT_MS = 25_000;
/** Reconnects of an output stream in a row that brought nothing behind their `start`, not even a keepalive. */
const FRUITLESS_AT_MOST = 10;
const STDIN_PIECE_BYTES = 262_144;

const ENDED: readonly ExecStatus[] = ["exited", "timed_out", "cancelled", "lost", "refused"];
const hasEnded = (exec: Exec): boolean => ENDED.includes(exec.status);

/** Chosen here and not by the server, so that a start whose answer was lost can be sent again. */
const newExecId = (): string => `exe_${randomBytes(12).toString("hex")}`;

export function startOf(
  command: string | readonly string[],
  { signal: _, ...options }: StartOptions,
): StartExec & { id: string } {
  const what = typeof command === "string" ? { command } : { argv: [...command] };
  const given = Object.fromEntries(Object.entries(options).filter(([, value]) => value !== undefined));
  return { id: newExecId(), ...what, ...given };
}

/** Start and wait in one request: a command that ends within it costs one round trip. */
export async function run(
  calls: Calls,
  sandboxId: string,
  command: string | readonly string[],
  options: ExecOptions,
): Promise<ExecResult> {
  const { signal } = options;
  const exec = await calls.json<Exec>({
    method: "POST",
    path: `/v1/sandboxes/${sandboxId}/execs`,
    json: { ...startOf(command, options), waitMs: FIRST_WAIT_MS },
    idempotent: true,
    waitMs: FIRST_WAIT_MS,
    signal,
  });
  return ended(calls, exec, signal);
}

const execPath = (id: string): string => `/v1/execs/${encodeURIComponent(id)}`;

/** Polls until the exec has ended. Every exec ends, so this is bounded by the exec's own timeout and the signal. */
async function ended(calls: Calls, exec: Exec, signal: AbortSignal | undefined): Promise<ExecResult> {
  let last = exec;
  while (!hasEnded(last)) {
    last = await calls.json<Exec>({
      method: "GET",
      path: execPath(exec.id),
      query: { waitMs: NEXT_WAIT_MS },
      idempotent: true,
      waitMs: NEXT_WAIT_MS,
      signal,
    });
  }
  if (last.status === "refused") {
    throw refused(calls.where({ method: "GET", path: execPath(exec.id) }), last);
  }
  return { ...last, stdout: last.stdout ?? "", stderr: last.stderr ?? "" };
}

export class ExecsOf implements Execs {
  readonly #calls: Calls;
  readonly #sandboxId: string;

  constructor(calls: Calls, sandboxId: string) {
    this.#calls = calls;
    this.#sandboxId = sandboxId;
  }

  async start(command: string | readonly string[], options: StartOptions = {}): Promise<ExecRun> {
    const exec = await this.#calls.json<Exec>({
      method: "POST",
      path: `/v1/sandboxes/${this.#sandboxId}/execs`,
      json: { ...startOf(command, options), detach: true },
      idempotent: true,
      signal: options.signal,
    });
    // An id of the caller's may be that of an exec which has taken stdin already.
    const written = options.id === undefined ? Buffer.byteLength(options.stdin ?? "") : null;
    return new Run(this.#calls, exec, written);
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
  #exec: Exec;
  /** How much of stdin the sandbox has taken; null where that has to be asked first. */
  #stdinOffset: number | null;
  #stdinTurn: Promise<void> = Promise.resolve();

  constructor(calls: Calls, exec: Exec, stdinOffset: number | null) {
    this.#calls = calls;
    this.#exec = exec;
    this.#stdinOffset = stdinOffset;
  }

  get id(): string {
    return this.#exec.id;
  }
  get info(): Exec {
    return this.#exec;
  }

  async result({ signal }: CallOptions = {}): Promise<ExecResult> {
    // What the handle knows of an ended exec may be without its output, so the ledger is asked at least once.
    const unfinished: Exec = { ...this.#exec, status: "running" };
    const result = await ended(this.#calls, unfinished, signal);
    this.#exec = result;
    return result;
  }

  /**
   * A stream that breaks, or ends without an `end` record, is taken up again behind the last chunk that was handed
   * out. Reconnects that bring nothing are counted, so that a server which only ever hangs up can't hold the caller.
   */
  async *output({ cursor, follow = true, signal }: OutputOptions = {}): AsyncGenerator<OutputChunk, void> {
    const chunker = new Chunker();
    let position = cursor;
    let broken: unknown = null;
    for (let fruitless = 0; fruitless < FRUITLESS_AT_MOST; fruitless++) {
      if (fruitless > 0) await pause(backoff(fruitless, Math.random()), signal);
      const pieces = await this.#open(position, follow, signal);
      try {
        for await (const record of recordsOf(pieces)) {
          if (record.type !== "start") fruitless = 0;
          if (record.type === "end") {
            this.#exec = record.exec;
            return;
          }
          if (record.type === "stdout" || record.type === "stderr") yield chunker.chunk(record);
          if (record.type !== "start") position = record.cursor;
        }
        if (!follow) return;
        broken = new Error("the stream ended before the exec did");
      } catch (error) {
        if (!(error instanceof ConnectionError)) throw error;
        broken = error;
      }
    }
    throw unreachable(
      this.#calls.where({ method: "GET", path: `${execPath(this.id)}/output` }),
      "yes",
      broken,
    );
  }

  #open(cursor: string | undefined, follow: boolean, signal: AbortSignal | undefined) {
    return this.#calls.stream({
      method: "GET",
      path: `${execPath(this.id)}/output`,
      query: { cursor, follow },
      headers: { accept: "application/x-ndjson" },
      idempotent: true,
      signal,
    });
  }

  async cancel({ signal }: CallOptions = {}): Promise<Exec> {
    this.#exec = await this.#calls.json<Exec>({
      method: "DELETE",
      path: execPath(this.id),
      idempotent: true,
      signal,
    });
    return this.#exec;
  }

  async signal(name: string, { signal }: CallOptions = {}): Promise<Exec> {
    this.#exec = await this.#calls.json<Exec>({
      method: "POST",
      path: `${execPath(this.id)}/signal`,
      json: { signal: name },
      idempotent: false,
      signal,
    });
    return this.#exec;
  }

  /** One write at a time: the offsets of two can't interleave. A write that failed doesn't stop the next. */
  writeStdin(
    data: string | Uint8Array,
    options: CallOptions & { end?: boolean | undefined } = {},
  ): Promise<void> {
    const bytes = typeof data === "string" ? Buffer.from(data) : data;
    const turn = this.#stdinTurn.then(() => this.#write(bytes, options.end ?? false, options.signal));
    this.#stdinTurn = turn.catch(() => {});
    return turn;
  }

  async #write(data: Uint8Array, end: boolean, signal: AbortSignal | undefined): Promise<void> {
    const begin = this.#stdinOffset ?? (await this.#send(0, new Uint8Array(), false, signal));
    const goal = begin + data.length;
    for (let offset = begin, first = true; offset < goal || (first && end); first = false) {
      const piece = data.subarray(offset - begin, offset - begin + STDIN_PIECE_BYTES);
      offset = await this.#send(offset, piece, end && offset + piece.length === goal, signal);
      this.#stdinOffset = offset;
    }
  }

  /** Exactly once by offset, and therefore safe to repeat. Says how far stdin has got. */
  async #send(
    offset: number,
    data: Uint8Array,
    end: boolean,
    signal: AbortSignal | undefined,
  ): Promise<number> {
    const { accepted } = await this.#calls.json<{ accepted: number }>({
      method: "POST",
      path: `${execPath(this.id)}/stdin`,
      query: { offset, end },
      bytes: { kind: "bytes", bytes: data },
      headers: { "content-type": "application/octet-stream" },
      idempotent: true,
      signal,
    });
    return accepted;
  }
}
