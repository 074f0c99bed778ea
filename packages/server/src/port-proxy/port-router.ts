import { type IncomingMessage, ServerResponse } from "node:http";
import type { Socket } from "node:net";
import { HoldfastError, isHoldfastError, type SandboxId } from "@holdfast/contract";
import type { Grant } from "@holdfast/engine";
import { type Gate, KEY_HEADER } from "../auth.ts";
import { CallerLeft } from "../callers.ts";
import type { Asked, RouteContext } from "../context.ts";
import { retryAfterSeconds } from "../retry-after.ts";
import { siteOf } from "../site.ts";
import type { StartGate } from "../start-gate.ts";
import { type Presented, presented, TOKEN_COOKIE } from "./credentials.ts";
import { errorPage } from "./error-page.ts";
import { ERROR_HEADER, requestHeaders } from "./headers.ts";
import { type Answer, type Order, PortProxy } from "./proxy.ts";
import { PREVIEW_PATH, type Target, targetOf } from "./target.ts";

export interface DoorParts {
  gate: Gate;
  start: StartGate;
  nextId(): string;
  /** Below which name every port has a host of its own. */
  domain: string;
}

/** Who came in, and by what. */
interface Entry {
  ref: string;
  port: number;
  grant: Grant | null;
  /** What of it was a token. */
  token: string | null;
}

/** A request that may go on, with what was found in it. */
interface Admitted {
  target: Target;
  given: Presented;
  /** Headers with keys in them. */
  keys: readonly string[];
  entry: Entry;
  request: IncomingMessage;
  signal: AbortSignal;
}

/**
 * Where requests for ports come in that are not the API's: by a host of the port's own, or by a preview's path; and all that
 * change to another protocol. It stands in front of the API's router, so that no path that is asked for here can mean a call of the
 * API. What lets a request in is taken off it: the program inside is hostile, and sees neither key nor token.
 */
export class FrontDoor {
  readonly #context: RouteContext;
  readonly #parts: DoorParts;
  readonly #proxy: PortProxy;

  constructor(context: RouteContext, parts: DoorParts) {
    this.#context = context;
    this.#parts = parts;
    this.#proxy = new PortProxy(context);
  }

  /** Where a plain request is not the API's. */
  takes(request: IncomingMessage): boolean {
    const target = this.#target(request);
    return target !== null && target.via !== "path";
  }

  /** Where a request for another protocol is a port's. */
  takesUpgrade(request: IncomingMessage): boolean {
    return request.headers.upgrade?.toLowerCase() === "websocket" && this.#target(request) !== null;
  }

  #target({ headers, url = "/" }: IncomingMessage): Target | null {
    return targetOf(headers.host, url, this.#parts.domain);
  }

  serve(request: IncomingMessage, response: ServerResponse): void {
    void this.#answered(request, response, async (target, given) => {
      const keys = await this.#parts.gate.keyHeaders(request.headers);
      const entry = await this.#enter(target, given, request, keys.length > 0);
      if (given.isInUrl && entry.token !== null && isVisit(request)) {
        if (target.via === "host")
          return welcome(response, given.path, entry, siteOf(request.headers).protocol);
        // What the page asks for next knows its path, and nothing of a query.
        return redirect(response, `${PREVIEW_PATH}${entry.token}${given.path}`);
      }
      const signal = this.#context.callers.signal(response);
      const order = this.#order({ target, given, keys, entry, request, signal });
      await this.#send(await this.#proxy.ask(order), response);
    });
  }

  upgrade(request: IncomingMessage, socket: Socket, head: Buffer): void {
    socket.on("error", () => socket.destroy());
    // Whatever is answered but the change of protocol is the last on this connection.
    const response = new ServerResponse(request);
    response.assignSocket(socket);
    response.shouldKeepAlive = false;
    response.once("finish", () => socket.destroySoon());
    void this.#answered(request, response, async (target, given) => {
      const keys = await this.#parts.gate.keyHeaders(request.headers);
      const entry = await this.#enter(target, given, request, keys.length > 0);
      // One that is closed already says so to nobody any more.
      if (socket.destroyed) throw new CallerLeft();
      const signal = this.#context.callers.attached(socket);
      const order = this.#order({ target, given, keys, entry, request, signal });
      const protocol = request.headers.upgrade ?? "websocket";
      const answer = await this.#proxy.upgrade({ ...order, body: null, protocol, socket, head });
      if (answer !== "tunnel") return this.#send(answer, response);
      response.detachSocket(socket);
      this.#watch(socket, () => socket.destroy());
    });
  }

  async #send(answer: Answer, response: ServerResponse): Promise<void> {
    const { socket } = response;
    const watched = socket === null ? undefined : this.#watch(socket, () => response.destroy());
    await answer.send(response).finally(watched);
  }

  /** A peer that acknowledges nothing holds a connection of the sandbox as well. */
  #watch(socket: Socket, vanished: () => void): () => void {
    const drop = this.#context.peers.watch(socket, vanished);
    // A connection has many answers, one after the other: each takes with it what it hung on it.
    const stop = () => {
      socket.off("close", stop);
      drop();
    };
    socket.once("close", stop);
    return stop;
  }

  async #answered(
    request: IncomingMessage,
    response: ServerResponse,
    act: (target: Target, given: Presented) => Promise<void>,
  ): Promise<void> {
    const asked: Asked = { id: this.#parts.nextId(), method: request.method ?? "GET", url: "", owner: null };
    const begun = performance.now();
    response.once("close", () => {
      const ms = performance.now() - begun;
      this.#context.metrics.request(asked.method, "port", response.statusCode, ms);
    });
    try {
      await this.#open();
      const target = this.#target(request);
      if (target === null) throw new HoldfastError("not_found");
      await act(target, presented(target.path, request.headers));
    } catch (error) {
      this.#fail(error, request, response, asked);
    }
  }

  async #open(): Promise<void> {
    const { callers } = this.#context;
    if (callers.closing) throw callers.closing;
    if (!this.#parts.start.open) await this.#parts.start.pass();
  }

  /** By a token, a key, or because the port is open to everybody; in that order. */
  async #enter(target: Target, given: Presented, request: IncomingMessage, hasKey: boolean): Promise<Entry> {
    if (target.via === "preview") return this.#byPreview(target.by, given);
    const { port } = target;
    const tokens = [...given.tokens, ...(this.#isStranger(target, request) ? [] : given.cookieTokens)];
    const refusal =
      tokens.length > 0
        ? new HoldfastError("preview_denied")
        : new HoldfastError("unauthorized", { message: NO_ENTRY });
    const id = await this.#idOf(target.ref, hasKey ? null : refusal);
    for (const token of tokens) {
      const grant = this.#admitted(token);
      if (grant?.sandboxId === id && grant.port === port) return { ref: id, port, grant, token };
    }
    const grant = hasKey ? null : this.#context.engine.previews.admitPublic(id as SandboxId, port);
    if (!hasKey && grant === null) throw refusal;
    return { ref: id, port, grant, token: null };
  }

  /** Who has no right to a sandbox does not learn whether it exists. */
  async #idOf(ref: string, refusal: HoldfastError | null): Promise<string> {
    try {
      return (await this.#context.engine.sandboxes.get(ref)).id;
    } catch (error) {
      throw isHoldfastError(error) ? (refusal ?? error) : error;
    }
  }

  #admitted(token: string): Grant | null {
    try {
      return this.#context.engine.previews.admit(token);
    } catch (error) {
      if (isHoldfastError(error)) return null;
      throw error;
    }
  }

  /**
   * A page of another sandbox is of the same site, so that a browser sends our cookie along with what that page asks for. It
   * counts for pages of this sandbox only.
   */
  #isStranger({ ref }: Target & { ref: string }, { headers: { origin } }: IncomingMessage): boolean {
    if (origin === undefined) return false;
    const from = targetOf(origin.replace(/^https?:\/\//, ""), "/", this.#parts.domain);
    return from?.via !== "host" || from.ref !== ref;
  }

  /** By the token in its path, or by its id with a token beside it; one that is open to everybody needs none. */
  #byPreview(by: string, given: Presented): Entry {
    const { previews } = this.#context.engine;
    const known = by.startsWith("prv_") ? previews.byId(by) : null;
    if (known !== null)
      for (const token of given.tokens) {
        const grant = this.#admitted(token);
        if (grant?.previewId === known.id) return { ref: grant.sandboxId, port: grant.port, grant, token };
      }
    const open = known?.public ? previews.admitPublic(known.sandboxId as SandboxId, known.port) : null;
    const grant = open ?? previews.admit(by);
    return { ref: grant.sandboxId, port: grant.port, grant, token: null };
  }

  #order({ target, given, keys, entry, request, signal }: Admitted): Order {
    return orderFor(request, {
      ref: entry.ref,
      port: entry.port,
      path: given.path,
      prefix: target.via === "host" ? "" : target.prefix,
      withheld: new Set([...given.headers, ...keys, KEY_HEADER]),
      cookie: given.cookie,
      signal: entry.grant === null ? signal : AbortSignal.any([signal, entry.grant.signal]),
    });
  }

  #fail(error: unknown, request: IncomingMessage, response: ServerResponse, asked: Asked): void {
    const left = error instanceof CallerLeft || response.destroyed;
    const { status, body } = this.#context.report(error, asked, left);
    if (left || response.headersSent) {
      response.destroy();
      return;
    }
    const known = isHoldfastError(error) ? error.retryAfterMs : undefined;
    const seconds = retryAfterSeconds(body.error.code, this.#context.numbers, known);
    const page = isVisit(request) ? errorPage(status, body.error) : null;
    const text = page ?? JSON.stringify(body);
    response.writeHead(status, {
      "content-type": page === null ? "application/json; charset=utf-8" : "text/html; charset=utf-8",
      "content-length": Buffer.byteLength(text),
      "cache-control": "no-store",
      "x-request-id": asked.id,
      [ERROR_HEADER]: body.error.code,
      ...(seconds === null ? {} : { "retry-after": String(seconds) }),
      // What is left of the body is nobody's.
      connection: "close",
    });
    response.end(request.method === "HEAD" ? undefined : text);
  }
}

const NO_ENTRY = "This port is open to who has a preview link or an API key.";

/** Somebody's browser goes there, as opposed to a program or a part of a page. */
const isVisit = ({ method, headers }: IncomingMessage): boolean =>
  (method === "GET" || method === "HEAD") &&
  (headers["sec-fetch-mode"] === "navigate" ||
    (headers["sec-fetch-mode"] === undefined && (headers.accept ?? "").includes("text/html")));

/** The token goes from the URL, where it would be passed on with every link, into a cookie of this host alone. */
function welcome(response: ServerResponse, path: string, { grant, token }: Entry, protocol: string): void {
  const seconds =
    grant?.expiresAt == null ? null : Math.max(1, Math.ceil((grant.expiresAt - Date.now()) / 1_000));
  const cookie = [
    `${TOKEN_COOKIE}=${token}`,
    "Path=/",
    "HttpOnly",
    "SameSite=Lax",
    ...(seconds === null ? [] : [`Max-Age=${seconds}`]),
    ...(protocol === "https" ? ["Secure"] : []),
  ].join("; ");
  redirect(response, path.startsWith("//") ? `/.${path}` : path, { "set-cookie": cookie });
}

function redirect(response: ServerResponse, location: string, headers: Record<string, string> = {}): void {
  response.writeHead(302, {
    location,
    ...headers,
    "cache-control": "no-store",
    "referrer-policy": "no-referrer",
    "content-length": 0,
  });
  response.end();
}

/** A request as it is put to the program inside. */
export function orderFor(
  request: IncomingMessage,
  asked: Pick<Order, "ref" | "port" | "path" | "prefix" | "signal"> & {
    withheld: ReadonlySet<string>;
    cookie: string | null | undefined;
  },
): Order {
  const { headers, method = "GET", socket } = request;
  const { withheld, cookie, ...rest } = asked;
  const site = siteOf(headers);
  const host = headers.host ?? `localhost:${asked.port}`;
  const hasBody = headers["transfer-encoding"] !== undefined || Number(headers["content-length"] ?? 0) > 0;
  return {
    ...rest,
    method,
    body: hasBody ? request : null,
    headers: requestHeaders(request.rawHeaders, {
      // Below a path it can't know its name; a name that it does not know would only make it suspicious.
      host: asked.prefix === "" ? host : `localhost:${asked.port}`,
      withheld,
      forwarded: {
        address: socket.remoteAddress ?? "",
        host: site.host ?? host,
        protocol: site.protocol,
        // One that has a token in it is not for the program's eyes.
        prefix: asked.prefix.startsWith(PREVIEW_PATH) ? "" : asked.prefix,
      },
      ...(cookie === undefined ? {} : { cookie }),
    }),
  };
}
