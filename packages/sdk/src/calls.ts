import { setTimeout as sleep } from "node:timers/promises";
import { discover, type Endpoint } from "./discover.ts";
import {
  AuthenticationError,
  ConnectionError,
  errorOf,
  HoldfastError,
  unexpected,
  type Where,
} from "./errors.ts";
import { PATIENCE, type Patience, retryDelay } from "./retry.ts";
import type { Body, Transport, WireReply } from "./transport.ts";

type Query = Record<string, string | number | boolean | readonly string[] | undefined>;

/** One call of the API. */
export interface Call {
  method: "GET" | "POST" | "PUT" | "DELETE";
  path: string;
  query?: Query;
  json?: unknown;
  bytes?: Body;
  headers?: Record<string, string>;
  /** Doing it twice is the same as doing it once, so a lost answer is simply asked for again. */
  idempotent: boolean;
  /** A status that is an answer here, not an error. */
  accept?: number;
  /** How long the server itself may wait before it answers, beyond the time an answer takes. */
  waitMs?: number;
  signal?: AbortSignal | undefined;
}

export interface CallsOptions {
  url?: string | undefined;
  apiKey?: string | undefined;
  timeoutMs: number;
  transport: Transport;
  patience?: Patience;
}

const JSON_LIMIT_BYTES = 64 * 1_048_576;
const ERROR_LIMIT_BYTES = 65_536;

/**
 * The calls, with what every one of them needs: the key, a deadline, typed errors, and repetition where a repeated
 * request can't do harm. A body that can be read only once is never sent twice.
 */
export class Calls {
  readonly #options: CallsOptions;
  readonly #transport: Transport;
  #endpoint: Endpoint;
  #acquainted = false;

  constructor(options: CallsOptions) {
    this.#options = options;
    this.#transport = options.transport;
    this.#endpoint = discover(options);
  }

  get url(): string {
    return this.#endpoint.url;
  }

  json<Answer>(call: Call): Promise<Answer> {
    return this.#repeat(call, async () => {
      const { reply, where } = await this.#send(call, false);
      const text = Buffer.from(await reply.bytes(JSON_LIMIT_BYTES)).toString();
      if (text === "") return undefined as Answer;
      try {
        return JSON.parse(text) as Answer;
      } catch (cause) {
        throw new HoldfastError({
          ...unexpected(where, reply.status, text.slice(0, ERROR_LIMIT_BYTES)),
          cause,
        });
      }
    });
  }

  bytes(call: Call): Promise<Uint8Array> {
    return this.#repeat(call, async () =>
      (await this.#send(call, true)).reply.bytes(Number.POSITIVE_INFINITY),
    );
  }

  /** Repeats only until the answer begins; what becomes of the stream is the caller's to handle. */
  stream(call: Call): Promise<AsyncGenerator<Uint8Array, void, undefined>> {
    return this.#repeat(call, async () => (await this.#send(call, true)).reply.stream());
  }

  /** Sends a body of any size and reads a JSON answer. */
  async upload<Answer>(call: Call): Promise<Answer> {
    return this.#repeat(call, async () => {
      const { reply } = await this.#send(call, true);
      return JSON.parse(Buffer.from(await reply.bytes(JSON_LIMIT_BYTES)).toString()) as Answer;
    });
  }

  where(call: Pick<Call, "method" | "path" | "query">): Where {
    return { method: call.method, url: `${base(this.#endpoint.url)}${call.path}${queryOf(call.query)}` };
  }

  close(): void {
    this.#transport.close();
  }

  async #repeat<Answer>(call: Call, attempt: () => Promise<Answer>): Promise<Answer> {
    let firstFailure: number | null = null;
    for (let tries = 1; ; tries++) {
      try {
        return await attempt();
      } catch (error) {
        firstFailure ??= performance.now();
        const failingMs = performance.now() - firstFailure;
        const delay = oneShot(call) ? null : this.#delay(call, error, tries, failingMs);
        if (delay === null) throw error;
        await pause(delay, call.signal);
        // A server that came back may listen elsewhere.
        if (error instanceof ConnectionError) {
          this.#endpoint = discover(this.#options, process.env, this.#endpoint.url);
        }
      }
    }
  }

  #delay(call: Call, error: unknown, tries: number, failingMs: number): number | null {
    return retryDelay({
      error,
      tries,
      failingMs,
      idempotent: call.idempotent,
      acquainted: this.#acquainted,
      patience: this.#options.patience ?? PATIENCE,
      random: Math.random(),
    });
  }

  async #send(call: Call, streaming: boolean): Promise<{ reply: WireReply; where: Where }> {
    const where = this.where(call);
    const reply = await this.#transport.send({
      ...where,
      headers: this.#headers(call),
      body: call.bytes ?? jsonBody(call),
      timeoutMs: this.#options.timeoutMs + (call.waitMs ?? 0),
      streaming,
      signal: call.signal,
    });
    this.#acquainted = true;
    if (reply.status >= 400 && reply.status !== call.accept)
      throw this.#explain(errorOf(where, reply.status, await textOf(reply)));
    return { reply, where };
  }

  #headers(call: Call): Record<string, string> {
    const headers: Record<string, string> = { accept: "application/json", ...call.headers };
    if (this.#endpoint.apiKey !== undefined) headers.authorization = `Bearer ${this.#endpoint.apiKey}`;
    if (call.json !== undefined) headers["content-type"] = "application/json";
    return headers;
  }

  #explain(error: HoldfastError): HoldfastError {
    const { problem } = this.#endpoint;
    if (!(error instanceof AuthenticationError) || problem === undefined) return error;
    return new AuthenticationError({ ...error, message: error.message, hint: problem, cause: error.cause });
  }
}

const base = (url: string): string => url.replace(/\/+$/, "");

const oneShot = (call: Call): boolean => call.bytes?.kind === "pieces" && !Array.isArray(call.bytes.pieces);

const jsonBody = (call: Call): Body | null =>
  call.json === undefined ? null : { kind: "bytes", bytes: Buffer.from(JSON.stringify(call.json)) };

function queryOf(query: Query | undefined): string {
  if (query === undefined) return "";
  const pairs = Object.entries(query).flatMap(([key, value]) => {
    if (value === undefined) return [];
    return [value].flat().map((one) => `${key}=${encodeURIComponent(String(one))}`);
  });
  return pairs.length === 0 ? "" : `?${pairs.join("&")}`;
}

async function textOf(reply: WireReply): Promise<string> {
  let text = "";
  for await (const piece of reply.stream()) {
    text += Buffer.from(piece).toString();
    if (text.length >= ERROR_LIMIT_BYTES) break;
  }
  return text.slice(0, ERROR_LIMIT_BYTES);
}

/** Waits, or throws the signal's own reason. */
export async function pause(ms: number, signal: AbortSignal | undefined): Promise<void> {
  try {
    await sleep(ms, undefined, signal === undefined ? {} : { signal });
  } catch (error) {
    signal?.throwIfAborted();
    throw error;
  }
}
