import { request as ask, type ClientRequest, type IncomingMessage, type ServerResponse } from "node:http";
import type { Duplex, Readable } from "node:stream";
import { HoldfastError, isHoldfastError } from "@holdfast/contract";
import type { EngineApi, PortConnection } from "@holdfast/engine";
import type { HttpParts } from "../context.ts";
import type { Metrics } from "../metrics.ts";
import { answerHeaders, type HeaderPairs, pairsOf } from "./headers.ts";

/** A request that is to be put to a program inside. */
export interface Order {
  ref: string;
  port: number;
  method: string;
  path: string;
  headers: HeaderPairs;
  /** Null where there is none. */
  body: Readable | null;
  /** Below which path of this server the program is found; empty where it has a host of its own. */
  prefix: string;
  /** Ends all of it. */
  signal: AbortSignal;
}

/** What a program inside has begun to answer. */
export interface Answer {
  readonly status: number;
  /** Passes it on to its end. Resolves when it is over, whichever way. */
  send(response: ServerResponse): Promise<void>;
}

/** What may be asked for again when nobody knows whether it was heard: it changes nothing. */
const SAFE = new Set(["GET", "HEAD", "OPTIONS"]);
/** Answers up to this length are waited for. */
const SHORT_BYTES = 65_536;
/** How often one that was cut before it was answered is put again. */
const REPEATS = 2;

/**
 * Puts requests to the programs that listen in sandboxes. Each has a connection of its own, so that a program that is restarted, or
 * a sandbox that sleeps, cuts what it was answering and nothing else. What is cut before its answer came is asked again where that
 * is harmless, and otherwise told as what it is: nobody knows whether it took effect. What is cut in the middle of an answer is cut
 * for the caller too, and never looks like an end.
 */
export class PortProxy {
  readonly #engine: Pick<EngineApi, "ports">;
  readonly #metrics: Pick<Metrics, "portRequest">;
  readonly #answerMs: number;
  /** How long what is left may be on its way when all else is over. */
  readonly #lingerMs: number;

  constructor({ engine, metrics, numbers }: Pick<HttpParts, "engine" | "metrics" | "numbers">) {
    this.#engine = engine;
    this.#metrics = metrics;
    this.#answerMs = numbers.portAnswerMs;
    this.#lingerMs = numbers.httpReceiveMs;
  }

  async ask(order: Order): Promise<Answer> {
    return this.#tried(order, async (connection) => {
      const { response } = await this.#put(connection, order, [...order.headers, ["connection", "close"]]);
      if (response !== null) return this.#answer(response, connection, order);
      throw new HoldfastError("port_cut", { message: "The program changed to another protocol unasked." });
    });
  }

  /** Asks for another protocol; where the program agrees, `socket` speaks it with the program from then on. */
  async upgrade(
    order: Order & { protocol: string; socket: Duplex; head: Buffer },
  ): Promise<Answer | "tunnel"> {
    const { protocol, socket, head } = order;
    return this.#tried(order, async (connection) => {
      const headers = [...order.headers, ["connection", "Upgrade"], ["upgrade", protocol]] as const;
      const { response, upgraded } = await this.#put(connection, order, headers);
      if (response !== null) return this.#answer(response, connection, order);
      connection.settled();
      this.#metrics.portRequest("upgraded");
      socket.write(headOf(upgraded.message, protocol, order));
      if (upgraded.head.length > 0) socket.write(upgraded.head);
      if (head.length > 0) upgraded.socket.write(head);
      join(socket, upgraded.socket, { used: () => connection.used(), lingerMs: this.#lingerMs });
      return "tunnel";
    });
  }

  /** A short answer is passed on whole or not at all: one that was cut can then be asked for again, or told as what it is. */
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

  async #answer(response: IncomingMessage, connection: PortConnection, order: Order): Promise<Answer> {
    const whole = await this.#whole(response);
    const over = (outcome: Outcome) => {
      this.#metrics.portRequest(outcome);
      if (order.body !== null) letGo(order.body, this.#lingerMs);
    };
    return answerOf(response, connection, order, { whole, over });
  }

  async #tried<Result>(order: Order, act: (connection: PortConnection) => Promise<Result>): Promise<Result> {
    try {
      return await this.#repeated(order, act);
    } catch (error) {
      this.#metrics.portRequest(isHoldfastError(error) ? error.code : "caller_left");
      throw error;
    }
  }

  async #repeated<Result>(
    order: Order,
    act: (connection: PortConnection) => Promise<Result>,
  ): Promise<Result> {
    const mayRepeat = SAFE.has(order.method) && order.body === null;
    for (let repeats = 0; ; repeats += 1) {
      const connection = await this.#engine.ports.connect(order.ref, order.port, order.signal);
      try {
        return await act(connection);
      } catch (error) {
        connection.bytes.destroy();
        order.signal.throwIfAborted();
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

  /** Resolves with the head of the answer. Rejects where the connection ends before it, or nothing happens for too long. */
  #put(connection: PortConnection, order: Order, headers: HeaderPairs): Promise<Put> {
    const { method, path, body } = order;
    return new Promise<Put>((resolve, reject) => {
      const request = ask({
        method,
        path,
        headers: headers.flat(),
        setHost: false,
        createConnection: () => connection.bytes as never,
      });
      const patience = setTimeout(() => reject(silent(connection, order)), this.#answerMs);
      const settle = (act: () => void) => {
        clearTimeout(patience);
        act();
      };
      const used = () => {
        patience.refresh();
        connection.used();
      };
      request.on("response", (response) => settle(() => resolve({ response, upgraded: null })));
      request.on("upgrade", (message, socket, head) =>
        settle(() => resolve({ response: null, upgraded: { message, socket, head } })),
      );
      request.on("error", (error) => settle(() => reject(error)));
      request.on("close", () =>
        settle(() => reject(new Error("the connection was closed without an answer"))),
      );
      send(request, body, used);
    });
  }
}

type Put =
  | { response: IncomingMessage; upgraded: null }
  | { response: null; upgraded: { message: IncomingMessage; socket: Duplex; head: Buffer } };

/** An answer may come before all of the body was taken: the rest is then read for nobody. */
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

/** Whoever sends what nobody reads any more has so long for it; then its connection goes. */
function letGo(body: Readable, lingerMs: number): void {
  if (body.readableEnded || body.destroyed) return;
  const timer = setTimeout(() => body.destroy(), lingerMs).unref();
  body.once("close", () => clearTimeout(timer));
}

const silent = ({ sandboxId }: PortConnection, { port }: Order): HoldfastError =>
  new HoldfastError("port_silent", {
    sandboxId,
    dispatched: "unknown",
    message: `What listens at port ${port} of the sandbox has not answered in time.`,
  });

/** How an answer went that had begun. */
type Outcome = "answered" | "cut";

/** What Node reads of an answer and would not write. */
const UNPRINTABLE = /[^\t\x20-\x7e\x80-\xff]/g;
const LOWEST_STATUS = 200;

function answerOf(
  response: IncomingMessage,
  connection: PortConnection,
  order: Order,
  { whole, over }: { whole: Buffer | null; over: (outcome: Outcome) => void },
): Answer {
  const { statusCode: status = 0, rawHeaders } = response;
  const { sandboxId } = connection;
  if (status < LOWEST_STATUS) {
    const message = `What listens at port ${order.port} answered with the status ${status}, which is none.`;
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
          to.writeHead(status, statusMessage, answerHeaders(rawHeaders, order));
        } catch {
          to.destroy();
          return;
        }
        if (whole === null) passOn(response, connection, to);
        else to.end(whole);
      }),
  };
}

/** As it comes. What is cut inside is cut here. */
function passOn(response: IncomingMessage, connection: PortConnection, to: ServerResponse): void {
  response.on("data", () => connection.used());
  response.once("error", () => to.destroy());
  response.once("end", () => {
    if (response.headers.trailer !== undefined) to.addTrailers(pairsOf(response.rawTrailers));
    to.end();
  });
  response.pipe(to, { end: false });
}

/** The answer that agrees to another protocol. What it says beside that goes the way of every answer's headers. */
function headOf({ headers, rawHeaders }: IncomingMessage, protocol: string, order: Order): string {
  const said = answerHeaders(rawHeaders, order);
  const agreed = ["Upgrade", headers.upgrade ?? protocol, "Connection", "Upgrade"];
  const lines = pairsOf([...agreed, ...said]).map(([name, value]) => `${name}: ${value}`);
  return ["HTTP/1.1 101 Switching Protocols", ...lines, "", ""].join("\r\n");
}

/** A side that reads slowly has so long for the last of what was said. */
function finish(to: Duplex, lingerMs: number): void {
  const timer = setTimeout(() => to.destroy(), lingerMs).unref();
  to.once("close", () => clearTimeout(timer));
  to.end(() => to.destroy());
}

/** Each side hears all that the other says, also what it said last; when one is gone, so is the other. */
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
