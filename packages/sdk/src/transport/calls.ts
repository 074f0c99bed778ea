import { setTimeout as sleep } from "node:timers/promises";
import { discover, type Endpoint } from "./discover.ts";
import {
  AuthenticationError,
  ConnectionError,
  errorOf,
  HoldfastError,
  maybeDispatched,
  unexpected,
  type Where,
  whereOf,
} from "./errors.ts";
import { type Patience, retryDelay } from "./retry.ts";
import {
  type Body,
  gather,
  isPieces,
  type Transport,
  type WireReply,
  type WireRequest,
} from "./transport.ts";
import { lost } from "./transport-fetch.ts";

type Query = Record<string, string | number | boolean | readonly string[] | undefined>;

/** One call of the API. */
export interface Call {
  method: "GET" | "POST" | "PUT" | "PATCH" | "DELETE";
  path: string;
  query?: Query;
  json?: unknown;
  bytes?: Body;
  headers?: Record<string, string>;
  /** Doing it twice is the same as doing it once, so a lost answer is simply asked for again. */
  idempotent: boolean;
  /** An exec under way is waited for. */
  waiting?: boolean;
  /** The content type that a stream must have. */
  type?: string;
  /** A status that is an answer here, not an error. */
  accept?: number;
  /** How long the server itself may wait before it answers, beyond the time an answer takes. */
  waitMs?: number;
  /** The longest silence of a stream on which something comes more often than that. */
  silenceMs?: number;
  signal?: AbortSignal | undefined;
}

/** What decides over repeating it. */
export type Repeated = Pick<Call, "idempotent" | "waiting" | "bytes" | "signal">;

export interface CallsOptions {
  url?: string | undefined;
  apiKey?: string | undefined;
  timeoutMs: number;
  transport: Transport;
  /** For what is not ours: answers of programs inside. Default: the built-in one. */
  fetch?: typeof globalThis.fetch | undefined;
  patience: Patience;
}

const JSON_LIMIT_BYTES = 64 * 1_048_576;
const ERROR_LIMIT_BYTES = 65_536;
const JSON_TYPE = "application/json";

/** A stream says something every 5 s. One that is silent for three times that, and a margin, is dead, FIN or no FIN. */
export const STREAM_SILENCE_MS = 20_000;

/**
 * A call into a sandbox that sleeps is answered when it has woken. What can be sent again is, and joins the same wake; what
 * can't is given this time on top, for its answer is the only way to know what became of it.
 */
const WAKE_MS = 30_000;

/**
 * The calls, with what every one of them needs: the key, a deadline, typed errors, and repetition where a repeated
 * request can't do harm. A body that can be read only once is never sent twice.
 */
export class Calls {
  readonly #options: CallsOptions;
  readonly #transport: Transport;
  #endpoint: Endpoint;
  #base: string;
  #acquainted = false;

  constructor(options: CallsOptions) {
    this.#options = options;
    this.#transport = options.transport;
    this.#endpoint = discover(options);
    this.#base = baseOf(this.#endpoint);
  }

  get url(): string {
    return this.#endpoint.url;
  }

  async json<Answer>(call: Call): Promise<Answer> {
    for (let outage: Outage | null = null; ; ) {
      try {
        const request = this.#request(call);
        const { status, body } = await this.#transport.ask(request, JSON_LIMIT_BYTES);
        this.#acquainted = true;
        const text = Buffer.from(body.buffer, body.byteOffset, body.byteLength).toString();
        if (status >= 400 && status !== call.accept) throw this.#error(whereOf(request), status, text);
        return parsed(request, status, text);
      } catch (error) {
        outage ??= this.outage(call);
        await outage.failed(error);
      }
    }
  }

  bytes(call: Call): Promise<Uint8Array> {
    return this.#repeat(call, async () => gather(await this.open(call), Number.POSITIVE_INFINITY));
  }

  /** Repeats only until the answer begins; what becomes of the stream is the caller's to handle. */
  stream(call: Call): Promise<AsyncGenerator<Uint8Array, void, undefined>> {
    return this.#repeat(call, async () => (await this.open(call)).stream());
  }

  /** Sends a body of any size and reads a JSON answer. */
  upload<Answer>(call: Call): Promise<Answer> {
    return this.#repeat(call, async () => {
      const body = await gather(await this.open(call), JSON_LIMIT_BYTES);
      return JSON.parse(Buffer.from(body).toString()) as Answer;
    });
  }

  /** One try, for callers who handle an outage themselves. */
  async open(call: Call): Promise<WireReply> {
    const request = this.#request(call);
    const reply = await this.#transport.open(request);
    this.#acquainted = true;
    if (reply.status >= 400 && reply.status !== call.accept)
      throw this.#error(whereOf(request), reply.status, await textOf(reply, ERROR_LIMIT_BYTES));
    if (call.type !== undefined && reply.header("content-type")?.startsWith(call.type) !== true)
      throw new HoldfastError(unexpected(whereOf(request), reply.status, await textOf(reply, 1)));
    return reply;
  }

  /**
   * What a program inside answers, as it is. Only what Holdfast says itself is an error. Redirects are the program's, and may lead
   * anywhere: they are not followed, since the key would be.
   */
  fetch(path: string, init: RequestInit): Promise<Response> {
    const { method = "GET", body } = init;
    const attempt = () => this.#fetched(path, init);
    if (body !== undefined && body !== null && !isRepeatable(body)) return attempt();
    const idempotent = SAFE.has(method.toUpperCase()) && (body === undefined || body === null);
    return this.#repeat({ idempotent, signal: init.signal ?? undefined }, attempt);
  }

  async #fetched(path: string, init: RequestInit): Promise<Response> {
    const where = { method: init.method ?? "GET", url: this.#base + path };
    const headers = new Headers(init.headers);
    if (this.#endpoint.apiKey !== undefined) headers.set("x-holdfast-key", this.#endpoint.apiKey);
    const sent = { ...init, headers, redirect: "manual", duplex: "half" } as RequestInit;
    const { fetch = globalThis.fetch } = this.#options;
    const response = await fetch(where.url, sent).catch((error: unknown) => {
      init.signal?.throwIfAborted();
      // What was wrong with the order itself has no cause.
      const isNetworks = error instanceof Error && error.cause !== undefined;
      throw isNetworks ? lost(where, error) : error;
    });
    this.#acquainted = true;
    const code = response.headers.get("x-holdfast-error");
    if (code === null) return response;
    throw this.#error(where, response.status, (await response.text()) || wordless(where, code));
  }

  outage(call: Repeated): Outage {
    return new Outage({
      call,
      patience: this.#options.patience,
      acquainted: () => this.#acquainted,
      // A server that came back may listen elsewhere.
      rediscover: () => {
        this.#endpoint = discover(this.#options, process.env, this.#endpoint.url);
        this.#base = baseOf(this.#endpoint);
      },
    });
  }

  where(call: Pick<Call, "method" | "path" | "query">): Where {
    return { method: call.method, url: `${this.#base}${call.path}${queryOf(call.query)}` };
  }

  close(): void {
    this.#transport.close();
  }

  async #repeat<Answer>(call: Repeated, attempt: () => Promise<Answer>): Promise<Answer> {
    for (let outage: Outage | null = null; ; ) {
      try {
        return await attempt();
      } catch (error) {
        outage ??= this.outage(call);
        await outage.failed(error);
      }
    }
  }

  #request(call: Call): WireRequest {
    const repeatable = call.idempotent && !isOneShot(call.bytes);
    const timeoutMs = this.#options.timeoutMs + (call.waitMs ?? 0) + (repeatable ? 0 : WAKE_MS);
    return {
      method: call.method,
      base: this.#base,
      path: call.query === undefined ? call.path : call.path + queryOf(call.query),
      headers: this.#headers(call),
      body: call.json === undefined ? (call.bytes ?? null) : JSON.stringify(call.json),
      timeoutMs: Math.min(timeoutMs, call.silenceMs ?? Number.POSITIVE_INFINITY),
      signal: call.signal,
    };
  }

  #headers(call: Call): Record<string, string> {
    const headers: Record<string, string> = { accept: JSON_TYPE, ...call.headers };
    if (this.#endpoint.apiKey !== undefined) headers.authorization = `Bearer ${this.#endpoint.apiKey}`;
    if (call.json !== undefined) headers["content-type"] = JSON_TYPE;
    return headers;
  }

  #error(where: Where, status: number, text: string): HoldfastError {
    const error = errorOf(where, status, text.slice(0, ERROR_LIMIT_BYTES));
    const { problem } = this.#endpoint;
    if (!(error instanceof AuthenticationError) || problem === undefined) return error;
    return new AuthenticationError({ ...error, message: error.message, hint: problem, cause: error.cause });
  }
}

/** What can be asked for twice. */
const SAFE: ReadonlySet<string> = new Set(["GET", "HEAD", "OPTIONS"]);

/** A stream is gone once it was sent. */
const isRepeatable = (body: unknown): boolean => typeof body === "string" || ArrayBuffer.isView(body);

/** An error in answer to a HEAD, which has no body to say more. */
const wordless = ({ method, url }: Where, code: string): string =>
  JSON.stringify({
    error: {
      code,
      message: `${method} ${url} was answered with ${code}.`,
      hint: "Ask with GET for what is the matter.",
      retryable: false,
      dispatched: "unknown",
    },
  });

interface OutageFacts {
  call: Repeated;
  patience: Patience;
  acquainted: () => boolean;
  rediscover: () => void;
}

/** Failures in a row, of one call or of a stream that is taken up again: when to try next, and when to give up. */
export class Outage {
  readonly #facts: OutageFacts;
  #tries = 0;
  #since = 0;
  /** When the try began that is under way: what it waits for its answer is no outage. */
  #triedAt = 0;
  #maybeDispatched = false;

  constructor(facts: OutageFacts) {
    this.#facts = facts;
  }

  /** Resolves when it is time for the next try; throws where there is none. */
  async failed(error: unknown): Promise<void> {
    const { call, rediscover } = this.#facts;
    if (this.#tries === 0) this.#since = this.#triedAt = performance.now();
    this.#tries += 1;
    const delayMs = isOneShot(call.bytes) ? null : this.#delay(error, this.#triedAt - this.#since);
    if (delayMs === null) throw this.#verdict(error);
    if (error instanceof HoldfastError && error.method !== "GET" && error.dispatched !== "no")
      this.#maybeDispatched = true;
    await pause(delayMs, call.signal);
    if (error instanceof ConnectionError) rediscover();
    this.#triedAt = performance.now();
  }

  /** Something came: the next failure is the first one of another outage. */
  over(): void {
    this.#tries = 0;
  }

  #delay(error: unknown, failingMs: number): number | null {
    const { call, acquainted, patience } = this.#facts;
    return retryDelay({
      error,
      tries: this.#tries,
      failingMs,
      idempotent: call.idempotent,
      waiting: call.waiting ?? false,
      acquainted: acquainted(),
      patience,
      random: Math.random(),
    });
  }

  /** That the last try was not dispatched says nothing about those before it. */
  #verdict(error: unknown): unknown {
    if (!this.#maybeDispatched || !(error instanceof HoldfastError)) return error;
    return error.dispatched === "no" ? maybeDispatched(error) : error;
  }
}

const baseOf = ({ url }: Endpoint): string => url.replace(/\/+$/, "");

const isOneShot = (body: Body | undefined): boolean =>
  body !== undefined && isPieces(body) && !Array.isArray(body.pieces);

function parsed<Answer>(request: WireRequest, status: number, text: string): Answer {
  if (text === "") return undefined as Answer;
  try {
    return JSON.parse(text) as Answer;
  } catch (cause) {
    const facts = unexpected(whereOf(request), status, text.slice(0, ERROR_LIMIT_BYTES));
    throw new HoldfastError({ ...facts, cause });
  }
}

function queryOf(query: Query | undefined): string {
  if (query === undefined) return "";
  const pairs = Object.entries(query).flatMap(([key, value]) => {
    if (value === undefined) return [];
    return [value].flat().map((one) => `${key}=${encodeURIComponent(String(one))}`);
  });
  return pairs.length === 0 ? "" : `?${pairs.join("&")}`;
}

/** The beginning of a body: nothing more is waited for once there are `enough` characters. */
async function textOf(reply: WireReply, enough: number): Promise<string> {
  let text = "";
  for await (const piece of reply.stream()) {
    text += Buffer.from(piece).toString();
    if (text.length >= enough) break;
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
