import { setTimeout as sleep } from "node:timers/promises";
import { discover, type Endpoint, isAnnounced } from "../discover.ts";
import {
  AuthenticationError,
  ConnectionError,
  errorOf,
  HoldfastError,
  maybeDispatched,
  noServer,
  refuseUnknown,
  silent,
  unexpected,
  type Where,
  whereOf,
} from "../errors.ts";
import { lost } from "./fetch.ts";
import { Pulse } from "./pulse.ts";
import { type Patience, retryDelay } from "./retry.ts";
import {
  type Body,
  gather,
  isPieces,
  type Transport,
  type WireReply,
  type WireRequest,
} from "./transport.ts";

type Query = Record<string, string | number | boolean | readonly string[] | undefined>;

/** One call of the API. */
export interface Call {
  method: "GET" | "POST" | "PUT" | "PATCH" | "DELETE";
  path: string;
  query?: Query;
  json?: unknown;
  bytes?: Body;
  headers?: Record<string, string>;
  /** Whether a repetition of the call has no further effect. If true, the call is sent again after a lost response. */
  idempotent: boolean;
  /** Whether the call waits for an exec in progress. */
  waiting?: boolean;
  /** Required content type of a streamed response. */
  type?: string;
  /** An error status that the call returns as a result instead of throwing an error. */
  accept?: number;
  /** How long the server may wait before it answers, in addition to the normal response time. */
  waitMs?: number;
  /** Maximum time without any data from the server, for a stream with keepalives or for a request that waits. */
  silenceMs?: number;
  signal?: AbortSignal | undefined;
  /** Options of the caller that the method does not know. If there are any, the call is refused. */
  unknown?: object;
}

/** The properties of a call that decide whether it is sent again after a failure. */
type Repeated = Pick<Call, "idempotent" | "waiting" | "bytes" | "signal">;

interface CallsOptions {
  url?: string | undefined;
  apiKey?: string | undefined;
  timeoutMs: number;
  transport: Transport;
  /** The `fetch` function that sends requests to programs in sandboxes. Default: the built-in `fetch`. */
  fetch?: typeof globalThis.fetch | undefined;
  patience: Patience;
}

const JSON_LIMIT_BYTES = 64 * 1_048_576;
const ERROR_LIMIT_BYTES = 65_536;
const HEALTH_PATH = "/healthz";
const JSON_TYPE = "application/json";

/**
 * Maximum time without any data from a stream. The server sends a keepalive every 5 s. If nothing arrives for four
 * intervals, the connection is considered broken, even if it was not closed.
 */
export const STREAM_SILENCE_MS = 20_000;

/**
 * Additional time for the response to a call that can't be repeated. A sandbox in standby answers only after its wake,
 * and only the response shows whether such a call took effect. A call that can be repeated needs no additional time:
 * after a timeout it is sent again and waits for the same wake.
 */
const WAKE_MS = 30_000;

/**
 * Sends API calls with the API key and a deadline, converts failures to typed errors, and retries calls that can be
 * repeated. A body that can be read only once is never sent twice.
 */
export class Calls {
  readonly #options: CallsOptions;
  readonly #transport: Transport;
  readonly #pulse: Pulse;
  #endpoint: Endpoint;
  #base: string;
  #acquainted = false;

  constructor(options: CallsOptions) {
    this.#options = options;
    this.#transport = options.transport;
    this.#endpoint = discover(options);
    this.#base = baseOf(this.#endpoint);
    this.#pulse = new Pulse(options.patience.outageMs, (timeoutMs) => this.#probe(timeoutMs));
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

  /** Opens a stream. Retries only until the response begins; after that the caller handles failures of the stream. */
  stream(call: Call): Promise<AsyncGenerator<Uint8Array, void, undefined>> {
    return this.#repeat(call, async () => (await this.open(call)).stream());
  }

  /** Sends a body of any size and reads a JSON response to it. */
  upload<Answer>(call: Call): Promise<Answer> {
    return this.#repeat(call, async () => {
      const body = await gather(await this.open(call), JSON_LIMIT_BYTES);
      return JSON.parse(Buffer.from(body).toString()) as Answer;
    });
  }

  /** Makes one attempt without retries, for callers that handle outages themselves. */
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
   * Returns the response of a program in the sandbox unchanged. Throws only errors of Holdfast itself. Redirects are
   * not followed, because the program chooses their target, and following them would send the API key there.
   */
  fetch(path: string, init: RequestInit): Promise<Response> {
    const { method = "GET", body } = init;
    const attempt = () => this.#fetched(path, init);
    if (body !== undefined && body !== null && !isRepeatable(body)) return attempt();
    const idempotent = SAFE.has(method.toUpperCase()) && (body === undefined || body === null);
    return this.#repeat({ idempotent, signal: init.signal ?? undefined }, attempt);
  }

  async #fetched(path: string, init: RequestInit): Promise<Response> {
    this.#checkServer({ method: init.method ?? "GET", path });
    const where = { method: init.method ?? "GET", url: this.#base + path };
    const headers = new Headers(init.headers);
    if (this.#endpoint.apiKey !== undefined) headers.set("x-holdfast-key", this.#endpoint.apiKey);
    const given = new AbortController();
    const signal = init.signal ? AbortSignal.any([init.signal, given.signal]) : given.signal;
    const sent = { ...init, headers, signal, redirect: "manual", duplex: "half" } as RequestInit;
    const { fetch = globalThis.fetch } = this.#options;
    // The program may take any time to respond. Only a server that shows no sign of life ends the wait.
    const watch = this.#pulse.watch((silentMs) => given.abort(silent(where, silentMs, "unknown", silentMs)));
    try {
      const response = await fetch(where.url, sent);
      watch.heard();
      this.#acquainted = true;
      const code = response.headers.get("x-holdfast-error");
      if (code === null) return response;
      throw this.#error(where, response.status, (await response.text()) || wordless(where, code));
    } catch (error) {
      init.signal?.throwIfAborted();
      given.signal.throwIfAborted();
      if (error instanceof HoldfastError) throw error;
      // `fetch` throws an error without a cause if the request is invalid, and with a cause if the network failed.
      const isNetworks = error instanceof Error && error.cause !== undefined;
      throw isNetworks ? lost(where, error) : error;
    } finally {
      watch.end();
    }
  }

  outage(call: Repeated): Outage {
    return new Outage({
      call,
      patience: this.#options.patience,
      acquainted: () => this.#acquainted,
      silentMs: () => this.#pulse.silentMs,
      // The server's address is looked up again, because a restarted server may listen on another port.
      rediscover: () => this.#rediscover(),
    });
  }

  /**
   * Sends a health request. Any response, even an error, shows that the server, or at least a proxy in front of it,
   * works.
   */
  #probe(timeoutMs: number): Promise<unknown> {
    const request = { method: "GET", base: this.#base, path: HEALTH_PATH, headers: {}, body: null };
    return this.#transport.ask({ ...request, timeoutMs, signal: undefined }, JSON_LIMIT_BYTES);
  }

  #rediscover(): void {
    this.#endpoint = discover(this.#options, process.env, this.#endpoint.url);
    this.#base = baseOf(this.#endpoint);
  }

  /**
   * Ensures that the server found in the state directory is still running. After it has ended, another program may
   * listen at its address. That program must receive neither the API key nor the request.
   */
  #checkServer(call: { method: string; path: string }): void {
    const { announced, absent } = this.#endpoint;
    if (announced === null ? absent !== undefined : !isAnnounced(announced)) this.#rediscover();
    const why = this.#endpoint.absent;
    if (why !== undefined) throw noServer(this.where(call), why);
  }

  where(call: Pick<Call, "path" | "query"> & { method: string }): Where {
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
    if (call.unknown !== undefined) refuseUnknown(call.unknown, this.where(call));
    this.#checkServer(call);
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
      pulse: this.#pulse,
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
    const { problem, apiKey } = this.#endpoint;
    if (!(error instanceof AuthenticationError) || problem === undefined) return error;
    const message = apiKey === undefined ? "The request was sent without an API key." : error.message;
    return new AuthenticationError({ ...error, message, hint: problem, cause: error.cause });
  }
}

/** Methods that can be repeated without further effect. */
const SAFE: ReadonlySet<string> = new Set(["GET", "HEAD", "OPTIONS"]);

/** Whether a body can be sent again; a stream can be read only once. */
const isRepeatable = (body: unknown): boolean => typeof body === "string" || ArrayBuffer.isView(body);

/**
 * Builds an error body for a failed HEAD request, because a response to HEAD has no body that could contain the error.
 */
const wordless = ({ method, url }: Where, code: string): string =>
  JSON.stringify({
    error: {
      code,
      message: `${method} ${url} failed with ${code}.`,
      hint: "Send a GET request to see the details.",
      retryable: false,
      dispatched: "unknown",
    },
  });

interface OutageFacts {
  call: Repeated;
  patience: Patience;
  acquainted: () => boolean;
  silentMs: () => number;
  rediscover: () => void;
}

/**
 * Counts the consecutive failures of one call, or of one stream over several connections, and decides when to retry and
 * when to give up.
 */
export class Outage {
  readonly #facts: OutageFacts;
  #tries = 0;
  #since = 0;
  /**
   * Start time of the current attempt. An outage is counted up to this time, so that the wait for the attempt's
   * response does not count.
   */
  #triedAt = 0;
  #maybeDispatched = false;

  constructor(facts: OutageFacts) {
    this.#facts = facts;
  }

  /** Waits until it is time for the next attempt. Throws the error if no further attempt is made. */
  async failed(error: unknown): Promise<void> {
    const { call, rediscover } = this.#facts;
    if (this.#tries === 0) this.#since = this.#triedAt = performance.now();
    this.#tries += 1;
    const delayMs = isOneShot(call.bytes) ? null : this.#delay(error, this.#failingMs(error));
    if (delayMs === null) throw this.#verdict(error);
    if (error instanceof HoldfastError && error.method !== "GET" && error.dispatched !== "no")
      this.#maybeDispatched = true;
    await pause(delayMs, call.signal);
    if (error instanceof ConnectionError) rediscover();
    this.#triedAt = performance.now();
  }

  /** Ends the outage: a later failure starts a new one. */
  over(): void {
    this.#tries = 0;
  }

  /**
   * Called when an attempt has failed. Returns how long the outage has lasted: the time from the first failure to the
   * start of this attempt. If the attempt failed because the server is silent, the result is at least the duration of
   * that silence. A silence that has ended does not count, so a server that responds again gets the full time for later
   * failures.
   */
  #failingMs(error: unknown): number {
    const failingMs = this.#triedAt - this.#since;
    if (!(error instanceof ConnectionError) || error.code !== "timeout") return failingMs;
    return Math.max(failingMs, error.silentMs || this.#facts.silentMs());
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

  /**
   * Returns the error to throw. If any attempt may have reached the sandbox, the error says so, even if the last
   * attempt did not.
   */
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

/** Reads the beginning of a body: at least `enough` characters, or the whole body if it is shorter. */
async function textOf(reply: WireReply, enough: number): Promise<string> {
  let text = "";
  for await (const piece of reply.stream()) {
    text += Buffer.from(piece).toString();
    if (text.length >= enough) break;
  }
  return text.slice(0, ERROR_LIMIT_BYTES);
}

/** Waits for `ms` milliseconds. If the signal fires first, throws the signal's own reason. */
export async function pause(ms: number, signal: AbortSignal | undefined): Promise<void> {
  try {
    await sleep(ms, undefined, signal === undefined ? {} : { signal });
  } catch (error) {
    signal?.throwIfAborted();
    throw error;
  }
}
