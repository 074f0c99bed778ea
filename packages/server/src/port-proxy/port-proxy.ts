import { request as ask, type ClientRequest, type IncomingMessage, type ServerResponse } from "node:http";
import type { Duplex, Readable } from "node:stream";
import { HoldfastError, isHoldfastError } from "@holdfast/contract";
import type { EngineApi, PortConnection } from "@holdfast/engine";
import type { HttpParts } from "../http/context.ts";
import type { RequestMetrics } from "../ports/telemetry.ts";
import { type HeaderPairs, pairsOf, responseHeaders } from "./headers.ts";

/** A request to forward to a program in a sandbox. */
export interface PortRequest {
  ref: string;
  port: number;
  method: string;
  path: string;
  headers: HeaderPairs;
  /** Body of the request; null if it has none. */
  body: Readable | null;
  /** Path of this server below which the program is served; empty if the program has its own host name. */
  prefix: string;
  /** Headers that the preview sets on the response. */
  set?: Readonly<Record<string, string>>;
  /** Aborts the whole exchange. */
  signal: AbortSignal;
}

/** The beginning of a program's response. */
export interface PortResponse {
  readonly status: number;
  /** Streams the response to its end. Resolves when the exchange has ended, successfully or not. */
  send(response: ServerResponse): Promise<void>;
}

/** Safe methods. A request with a safe method can be repeated when it is unknown whether the program received it. */
const SAFE = new Set(["GET", "HEAD", "OPTIONS"]);
/** Responses up to this length are buffered as a whole. */
const SHORT_BYTES = 65_536;
/** Maximum number of times that a request is repeated because its connection closed before the response. */
const REPEATS = 2;

/**
 * Forwards requests to programs in sandboxes. Each request has its own connection. So if a program restarts or a
 * sandbox is suspended, only the responses in progress are interrupted. If the connection closes before the response, a
 * request with a safe method is repeated; for any other request, the error says that the outcome is unknown. If the
 * connection closes during the response, the caller's connection is closed too, so that the response never looks
 * complete.
 */
export class PortProxy {
  readonly #engine: Pick<EngineApi, "ports">;
  readonly #metrics: Pick<RequestMetrics, "portRequest">;
  readonly #answerMs: number;
  /** Maximum time, after an exchange has ended, to transfer the bytes that are still buffered. */
  readonly #lingerMs: number;

  constructor({ engine, metrics, numbers }: Pick<HttpParts, "engine" | "metrics" | "numbers">) {
    this.#engine = engine;
    this.#metrics = metrics;
    this.#answerMs = numbers.portAnswerMs;
    this.#lingerMs = numbers.httpReceiveMs;
  }

  async ask(request: PortRequest): Promise<PortResponse> {
    return this.#tried(request, async (connection) => {
      const { response } = await this.#put(connection, request, [
        ...request.headers,
        ["connection", "close"],
      ]);
      if (response !== null) return this.#answer(response, connection, request);
      throw new HoldfastError("port_cut", {
        message: "The program switched protocols although the request did not ask for an upgrade.",
      });
    });
  }

  /** Requests a protocol upgrade; if the program agrees, `socket` is connected to the program. */
  async upgrade(
    request: PortRequest & { protocol: string; socket: Duplex; head: Buffer },
  ): Promise<PortResponse | "tunnel"> {
    const { protocol, socket, head } = request;
    return this.#tried(request, async (connection) => {
      const headers = [...request.headers, ["connection", "Upgrade"], ["upgrade", protocol]] as const;
      const { response, upgraded } = await this.#put(connection, request, headers);
      if (response !== null) return this.#answer(response, connection, request);
      connection.settled();
      this.#metrics.portRequest("upgraded");
      socket.write(headOf(upgraded.message, protocol, request));
      if (upgraded.head.length > 0) socket.write(upgraded.head);
      if (head.length > 0) upgraded.socket.write(head);
      join(socket, upgraded.socket, { used: () => connection.used(), lingerMs: this.#lingerMs });
      return "tunnel";
    });
  }

  /**
   * Reads a short response completely before any of it is sent to the caller; returns null if the response is not
   * short. If the connection closes before the end of a short response, the request can still be repeated or an error
   * can be reported, because the caller has received nothing yet.
   */
  async #whole(response: IncomingMessage): Promise<Buffer | null> {
    const length = Number(response.headers["content-length"] ?? Number.POSITIVE_INFINITY);
    if (!(length <= SHORT_BYTES)) return null;
    const patience = setTimeout(() => response.destroy(), this.#answerMs);
    try {
      return Buffer.concat(await response.toArray());
    } finally {
      clearTimeout(patience);
    }
  }

  async #answer(
    response: IncomingMessage,
    connection: PortConnection,
    request: PortRequest,
  ): Promise<PortResponse> {
    const whole = await this.#whole(response);
    const over = (outcome: Outcome) => {
      this.#metrics.portRequest(outcome);
      if (request.body !== null) discardBody(request.body, this.#lingerMs);
    };
    return answerOf(response, connection, request, { whole, over });
  }

  async #tried<Result>(
    request: PortRequest,
    act: (connection: PortConnection) => Promise<Result>,
  ): Promise<Result> {
    try {
      return await this.#repeated(request, act);
    } catch (error) {
      this.#metrics.portRequest(isHoldfastError(error) ? error.code : "caller_left");
      throw error;
    }
  }

  async #repeated<Result>(
    request: PortRequest,
    act: (connection: PortConnection) => Promise<Result>,
  ): Promise<Result> {
    const mayRepeat = SAFE.has(request.method) && request.body === null;
    for (let repeats = 0; ; repeats += 1) {
      const connection = await this.#engine.ports.connect(request.ref, request.port, request.signal);
      try {
        return await act(connection);
      } catch (error) {
        connection.bytes.destroy();
        request.signal.throwIfAborted();
        if (isHoldfastError(error)) throw error;
        if (mayRepeat && repeats < REPEATS) continue;
        throw new HoldfastError("port_cut", {
          sandboxId: connection.sandboxId,
          dispatched: "unknown",
          cause: error,
        });
      }
    }
  }

  /**
   * Sends the request and resolves with the head of the response. Rejects if the connection closes before that head, or
   * if no data moves for too long.
   */
  #put(connection: PortConnection, request: PortRequest, headers: HeaderPairs): Promise<Put> {
    const { method, path, body } = request;
    return new Promise<Put>((resolve, reject) => {
      const outgoing = ask({
        method,
        path,
        headers: headers.flat(),
        setHost: false,
        createConnection: () => connection.bytes as never,
      });
      const patience = setTimeout(() => reject(silent(connection, request)), this.#answerMs);
      const settle = (act: () => void) => {
        clearTimeout(patience);
        act();
      };
      const used = () => {
        patience.refresh();
        connection.used();
      };
      outgoing.on("response", (response) => settle(() => resolve({ response, upgraded: null })));
      outgoing.on("upgrade", (message, socket, head) =>
        settle(() => resolve({ response: null, upgraded: { message, socket, head } })),
      );
      outgoing.on("error", (error) => settle(() => reject(error)));
      outgoing.on("close", () =>
        settle(() => reject(new Error("the connection was closed without an answer"))),
      );
      send(outgoing, body, used);
    });
  }
}

type Put =
  | { response: IncomingMessage; upgraded: null }
  | { response: null; upgraded: { message: IncomingMessage; socket: Duplex; head: Buffer } };

/**
 * Sends the request body. A response may arrive before the whole body was read; the rest of the body is then discarded.
 */
function send(request: ClientRequest, body: Readable | null, used: () => void): void {
  if (body === null) {
    request.end();
    return;
  }
  body.on("data", used);
  body.pipe(request);
  const leave = () => {
    body.off("data", used);
    body.unpipe(request);
    body.resume();
  };
  request.on("close", leave);
  request.on("error", leave);
}

/** Gives the client time to send the rest of a body, which is discarded. After that time, the connection is closed. */
function discardBody(body: Readable, lingerMs: number): void {
  if (body.readableEnded || body.destroyed) return;
  const timer = setTimeout(() => body.destroy(), lingerMs).unref();
  body.once("close", () => clearTimeout(timer));
}

const silent = ({ sandboxId }: PortConnection, { port }: PortRequest): HoldfastError =>
  new HoldfastError("port_silent", {
    sandboxId,
    dispatched: "unknown",
    message: `The program on port ${port} of the sandbox did not answer in time.`,
  });

/** How a response ended after its head had been received: complete, or cut before its end. */
type Outcome = "answered" | "cut";

/** Characters that Node accepts in a received status message but refuses to send. */
const UNPRINTABLE = /[^\t\x20-\x7e\x80-\xff]/g;
const LOWEST_STATUS = 200;

function answerOf(
  response: IncomingMessage,
  connection: PortConnection,
  request: PortRequest,
  { whole, over }: { whole: Buffer | null; over: (outcome: Outcome) => void },
): PortResponse {
  const { statusCode: status = 0, rawHeaders } = response;
  const { sandboxId } = connection;
  if (status < LOWEST_STATUS) {
    const message = `The program on port ${request.port} answered with the invalid status ${status}.`;
    throw new HoldfastError("port_cut", { sandboxId, dispatched: "unknown", message });
  }
  const statusMessage = response.statusMessage?.replace(UNPRINTABLE, "");
  return {
    status,
    send: (to) =>
      new Promise((resolve) => {
        connection.settled();
        to.once("close", () => {
          connection.bytes.destroy();
          over(response.complete && to.writableFinished ? "answered" : "cut");
          resolve();
        });
        try {
          to.writeHead(status, statusMessage, responseHeaders(rawHeaders, request));
        } catch {
          to.destroy();
          return;
        }
        if (whole === null) passOn(response, connection, to);
        else to.end(whole);
      }),
  };
}

/**
 * Streams the response body to the caller. If the program's connection closes before the body's end, the caller's
 * connection is closed too.
 */
function passOn(response: IncomingMessage, connection: PortConnection, to: ServerResponse): void {
  response.on("data", () => connection.used());
  response.once("error", () => to.destroy());
  response.once("end", () => {
    if (response.headers.trailer !== undefined) to.addTrailers(pairsOf(response.rawTrailers));
    to.end();
  });
  response.pipe(to, { end: false });
}

/** Writes the head of the 101 response. Its headers are rewritten in the same way as in other responses. */
function headOf({ headers, rawHeaders }: IncomingMessage, protocol: string, request: PortRequest): string {
  const passed = responseHeaders(rawHeaders, request);
  const agreed = ["Upgrade", headers.upgrade ?? protocol, "Connection", "Upgrade"];
  const lines = pairsOf([...agreed, ...passed]).map(([name, value]) => `${name}: ${value}`);
  return ["HTTP/1.1 101 Switching Protocols", ...lines, "", ""].join("\r\n");
}

/** Ends a stream. A slow reader gets some time to read the last bytes. */
function finish(to: Duplex, lingerMs: number): void {
  const timer = setTimeout(() => to.destroy(), lingerMs).unref();
  to.once("close", () => clearTimeout(timer));
  to.end(() => to.destroy());
}

/**
 * Connects two streams: copies the bytes of each to the other, including the last ones. When one closes, the other is
 * closed too.
 */
function join(one: Duplex, other: Duplex, { used, lingerMs }: { used: () => void; lingerMs: number }): void {
  for (const [from, to] of [
    [one, other],
    [other, one],
  ] as const) {
    from.on("error", () => undefined);
    from.on("data", used);
    from.once("close", () => {
      if (from.readableEnded) finish(to, lingerMs);
      else to.destroy();
    });
    from.pipe(to);
  }
}
