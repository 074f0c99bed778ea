import { type IncomingMessage, ServerResponse } from "node:http";
import type { Socket } from "node:net";
import { HoldfastError, isHoldfastError, type PreviewId, type SandboxId } from "@holdfast/contract";
import type { Grant, PreviewHeaders } from "@holdfast/engine";
import { KEY_HEADER } from "../http/api-keys.ts";
import { CallerLeft } from "../http/callers.ts";
import type { RequestSummary, RouteContext } from "../http/context.ts";
import { publicOrigin } from "../http/public-origin.ts";
import { retryAfterSeconds } from "../http/retry-after.ts";
import type { StartupHold } from "../http/startup-hold.ts";
import { type Presented, presented, TOKEN_COOKIE } from "./credentials.ts";
import { forVisitor, renderErrorPage } from "./error-page.ts";
import { ERROR_HEADER, requestHeaders, responseHeaders } from "./headers.ts";
import { PortProxy, type PortRequest, type PortResponse } from "./port-proxy.ts";
import { isAnsweredPreflight } from "./preview-headers.ts";
import { PREVIEW_PATH, type Target, targetOf } from "./target.ts";

interface PortRouterParts {
  start: StartupHold;
  nextId(): string;
  /** Domain below which every port has its own host name. */
  domain: string;
}

/**
 * The target of an admitted request. `grant` is the access that the preview gives if a preview admitted the request;
 * null if an API key admitted it.
 */
interface Entry {
  ref: string;
  port: number;
  grant: Grant | null;
  /**
   * The token from the query, a header or a cookie that admitted the request; null if the request was admitted in
   * another way.
   */
  token: string | null;
}

/** An admitted request with its resolved target. */
interface Admitted {
  target: Target;
  given: Presented;
  /** Names of headers that contain keys. */
  keys: readonly string[];
  entry: Entry;
  request: IncomingMessage;
  signal: AbortSignal;
}

/**
 * Serves port requests that do not go through the API's router: requests to a port's own host, requests to a preview's
 * path, and all WebSocket upgrades for ports, even those to a path of the API. It runs before the API's router, so none
 * of these requests can reach the API. Credentials are removed from every request: the program in the sandbox may be
 * hostile and must see neither key nor token.
 */
export class PortRouter {
  readonly #context: RouteContext;
  readonly #parts: PortRouterParts;
  readonly #proxy: PortProxy;

  constructor(context: RouteContext, parts: PortRouterParts) {
    this.#context = context;
    this.#parts = parts;
    this.#proxy = new PortProxy(context);
  }

  /**
   * Whether this class serves a request without an upgrade: one to a port's own host or to a preview's path. The API's
   * router serves port requests to a path of the API.
   */
  takes(request: IncomingMessage): boolean {
    const target = this.#target(request);
    return target !== null && target.via !== "path";
  }

  /** Whether the request is a WebSocket upgrade for a port, in any of the three ways to address a port. */
  takesUpgrade(request: IncomingMessage): boolean {
    return request.headers.upgrade?.toLowerCase() === "websocket" && this.#target(request) !== null;
  }

  #target({ headers, url = "/" }: IncomingMessage): Target | null {
    return targetOf(headers.host, url, this.#parts.domain);
  }

  serve(request: IncomingMessage, response: ServerResponse): void {
    void this.#answer(request, response, async (target, given) => {
      // A preflight carries no credentials, so it is answered before they are checked.
      if (this.#answerPreflight(this.#headersOf(target), target, request, response)) return;
      const keys = await this.#context.keyCheck.keyHeaders(request.headers);
      const entry = await this.#enter(target, given, request, keys.length > 0);
      if (this.#answerPreflight(entry.grant?.headers ?? null, target, request, response)) return;
      if (given.isInUrl && entry.token !== null && isVisit(request)) {
        if (target.via === "host")
          return setCookieAndRedirect(response, given.path, entry, publicOrigin(request.headers).protocol);
        // Redirects to a URL with the token in its path: the page's sub-resources inherit the path but not the query
        // string.
        return redirect(response, `${PREVIEW_PATH}${entry.token}${given.path}`);
      }
      const signal = this.#context.callers.signal(response);
      const order = this.#portRequest({ target, given, keys, entry, request, signal });
      await this.#send(await this.#proxy.ask(order), response);
    });
  }

  upgrade(request: IncomingMessage, socket: Socket, head: Buffer): void {
    socket.on("error", () => socket.destroy());
    // After an upgrade request, the connection is no longer parsed as HTTP. If the request gets an ordinary response
    // instead of the upgrade, the connection is closed after that response.
    const response = new ServerResponse(request);
    response.assignSocket(socket);
    response.shouldKeepAlive = false;
    response.once("finish", () => socket.destroySoon());
    void this.#answer(request, response, async (target, given) => {
      const keys = await this.#context.keyCheck.keyHeaders(request.headers);
      const entry = await this.#enter(target, given, request, keys.length > 0);
      // A closed socket emits no further `close` event. A signal created for it would never abort, so the request ends
      // now.
      if (socket.destroyed) throw new CallerLeft();
      const signal = this.#context.callers.attached(socket);
      const order = this.#portRequest({ target, given, keys, entry, request, signal });
      const protocol = request.headers.upgrade ?? "websocket";
      const answer = await this.#proxy.upgrade({ ...order, body: null, protocol, socket, head });
      if (answer !== "tunnel") return this.#send(answer, response);
      response.detachSocket(socket);
      this.#watch(socket, () => socket.destroy());
    });
  }

  /** Returns the headers of the preview that a request names in its path; null if it names none that exists. */
  #headersOf(target: Target | null): PreviewHeaders | null {
    if (target?.via !== "preview") return null;
    const { by } = target;
    const { previews } = this.#context.engine;
    return by.startsWith("prv_")
      ? previews.headersOf(by as PreviewId)
      : (this.#admitted(by)?.headers ?? null);
  }

  #answerPreflight(
    headers: PreviewHeaders | null,
    target: Target,
    { method, headers: given }: IncomingMessage,
    response: ServerResponse,
  ): boolean {
    if (headers === null || !isAnsweredPreflight(method, given, headers)) return false;
    const prefix = target.via === "preview" ? target.prefix : "";
    response.writeHead(204, responseHeaders([], { prefix, port: 0, set: headers.response }));
    response.end();
    return true;
  }

  async #send(answer: PortResponse, response: ServerResponse): Promise<void> {
    const { socket } = response;
    const watched = socket === null ? undefined : this.#watch(socket, () => response.destroy());
    await answer.send(response).finally(watched);
  }

  /**
   * Watches for a peer that acknowledges none of the bytes it is sent. Otherwise such a peer would keep a connection to
   * the sandbox open.
   */
  #watch(socket: Socket, vanished: () => void): () => void {
    const drop = this.#context.peers.watch(socket, vanished);
    // One connection serves many responses, one after the other, so the watch of each response removes its own
    // listener.
    const stop = () => {
      socket.off("close", stop);
      drop();
    };
    socket.once("close", stop);
    return stop;
  }

  async #answer(
    request: IncomingMessage,
    response: ServerResponse,
    act: (target: Target, given: Presented) => Promise<void>,
  ): Promise<void> {
    const asked: RequestSummary = {
      id: this.#parts.nextId(),
      method: request.method ?? "GET",
      url: "",
      owner: null,
    };
    const begun = performance.now();
    response.once("close", () => {
      const ms = performance.now() - begun;
      this.#context.metrics.request(asked.method, "port", response.statusCode, ms);
    });
    try {
      await this.#open();
      const target = this.#target(request);
      if (target === null) throw new HoldfastError("not_found");
      await act(target, presented(target.path, request.headers, this.#context.tokenPlaces));
    } catch (error) {
      this.#fail(error, request, response, asked);
    }
  }

  async #open(): Promise<void> {
    const { callers } = this.#context;
    if (callers.closing) throw callers.closing;
    if (!this.#parts.start.open) await this.#parts.start.pass();
  }

  /**
   * Admits a request for one of three reasons, in this order: it carries a valid token, it carries a valid key, or the
   * port is public.
   */
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
    const grant = hasKey ? null : this.#context.engine.previews.admitPublicPort(id as SandboxId, port);
    if (!hasKey && grant === null) throw refusal;
    return { ref: id, port, grant, token: null };
  }

  /** Returns the id of the sandbox. A caller without access gets the same error whether or not the sandbox exists. */
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
   * Returns whether a request was sent by a page that does not belong to this sandbox. A browser treats the pages of
   * all sandboxes as the same site, so it sends this host's cookie even with a request that a page of another sandbox
   * makes. The cookie must not admit such a request.
   */
  #isStranger({ ref }: Target & { ref: string }, { headers: { origin } }: IncomingMessage): boolean {
    if (origin === undefined) return false;
    const from = targetOf(origin.replace(/^https?:\/\//, ""), "/", this.#parts.domain);
    return from?.via !== "host" || from.ref !== ref;
  }

  /**
   * Resolves the preview that the path names. The path contains either a token, or the id of a preview. With an id, a
   * private preview also needs a token in the query or a header; a public preview needs none. Only the named preview is
   * used, even if the port has others.
   */
  #byPreview(by: string, given: Presented): Entry {
    const { previews } = this.#context.engine;
    const known = by.startsWith("prv_") ? previews.byId(by) : null;
    if (known !== null)
      for (const token of given.tokens) {
        const grant = this.#admitted(token);
        if (grant?.previewId === known.id) return { ref: grant.sandboxId, port: grant.port, grant, token };
      }
    const open = known === null ? null : previews.admitPublic(known.id as PreviewId);
    if (open !== null) return { ref: open.sandboxId, port: open.port, grant: open, token: null };
    // A caller without a token gets the same error whether or not the preview exists, so the error does not reveal
    // which previews exist.
    if (by.startsWith("prv_") && given.tokens.length === 0)
      throw new HoldfastError("unauthorized", { message: NO_ENTRY });
    const grant = previews.admit(by);
    return { ref: grant.sandboxId, port: grant.port, grant, token: null };
  }

  #portRequest({ target, given, keys, entry, request, signal }: Admitted): PortRequest {
    return portRequestFor(request, {
      ref: entry.ref,
      port: entry.port,
      path: given.path,
      prefix: target.via === "host" ? "" : target.prefix,
      withheld: new Set([...given.headers, ...keys, KEY_HEADER]),
      cookie: given.cookie,
      preview: entry.grant?.headers,
      signal: entry.grant === null ? signal : AbortSignal.any([signal, entry.grant.signal]),
    });
  }

  /**
   * Returns the CORS headers that the preview sets. They are added to error responses too, so that pages of other
   * origins can read an error.
   */
  #corsHeaders(request: IncomingMessage): Record<string, string> {
    const set = this.#headersOf(this.#target(request))?.response ?? {};
    return Object.fromEntries(Object.entries(set).filter(([name]) => CORS.test(name)));
  }

  #fail(error: unknown, request: IncomingMessage, response: ServerResponse, asked: RequestSummary): void {
    const left = error instanceof CallerLeft || response.destroyed;
    const { status, body } = this.#context.report(error, asked, left);
    if (left || response.headersSent) {
      response.destroy();
      return;
    }
    const known = isHoldfastError(error) ? error.retryAfterMs : undefined;
    const seconds = retryAfterSeconds(body.error.code, this.#context.numbers, known);
    const page = isVisit(request) ? renderErrorPage(status, body.error) : null;
    const text = page ?? JSON.stringify({ ...body, error: forVisitor(body.error) });
    const own = {
      "content-type": page === null ? "application/json; charset=utf-8" : "text/html; charset=utf-8",
      "content-length": String(Buffer.byteLength(text)),
      "cache-control": "no-store",
      "x-request-id": asked.id,
      [ERROR_HEADER]: body.error.code,
      ...(seconds === null ? {} : { "retry-after": String(seconds) }),
      // An error may be sent before the whole request body was read, so the connection is not used again.
      connection: "close",
    };
    response.writeHead(status, { ...this.#corsHeaders(request), ...own });
    response.end(request.method === "HEAD" ? undefined : text);
  }
}

const CORS = /^(?:access-control-.*|vary)$/i;

const NO_ENTRY = "Access to this port needs a preview link or an API key.";

/**
 * Returns whether the request is a browser's navigation to a page, as opposed to a request of a program or for a
 * sub-resource.
 */
const isVisit = ({ method, headers }: IncomingMessage): boolean =>
  (method === "GET" || method === "HEAD") &&
  (headers["sec-fetch-mode"] === "navigate" ||
    (headers["sec-fetch-mode"] === undefined && (headers.accept ?? "").includes("text/html")));

/**
 * Moves the token from the URL to a cookie of this host, because a browser shows URLs, stores them in its history and
 * may send them to other sites.
 */
function setCookieAndRedirect(
  response: ServerResponse,
  path: string,
  { grant, token }: Entry,
  protocol: string,
): void {
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

/** Builds the request to forward to the program from the caller's request. */
export function portRequestFor(
  request: IncomingMessage,
  asked: Pick<PortRequest, "ref" | "port" | "path" | "prefix" | "signal"> & {
    withheld: ReadonlySet<string>;
    cookie: string | null | undefined;
    /** Headers that the preview sets. */
    preview?: PreviewHeaders | undefined;
  },
): PortRequest {
  const { headers, method = "GET", socket } = request;
  const { withheld, cookie, preview, ...rest } = asked;
  const site = publicOrigin(headers);
  const host = headers.host ?? `localhost:${asked.port}`;
  const hasBody = headers["transfer-encoding"] !== undefined || Number(headers["content-length"] ?? 0) > 0;
  return {
    ...rest,
    method,
    body: hasBody ? request : null,
    ...(preview === undefined ? {} : { set: preview.response }),
    headers: requestHeaders(request.rawHeaders, {
      // A program served below a path might reject the server's host name as unknown, so the host name it receives is
      // `localhost`.
      host: asked.prefix === "" ? host : `localhost:${asked.port}`,
      withheld,
      ...(preview === undefined ? {} : { set: preview.request }),
      forwarded: {
        address: socket.remoteAddress ?? "",
        host: site.host ?? host,
        protocol: site.protocol,
        // A prefix that contains a token must not reach the program.
        prefix: asked.prefix.startsWith(PREVIEW_PATH) ? "" : asked.prefix,
      },
      ...(cookie === undefined ? {} : { cookie }),
    }),
  };
}
