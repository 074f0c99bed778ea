import type { FastifyReply, FastifyRequest } from "fastify";
import { Gate, KEY_HEADER } from "../auth.ts";
import type { RouteContext } from "../context.ts";
import { presented } from "./credentials.ts";
import { orderFor } from "./door.ts";
import { type Order, PortProxy } from "./proxy.ts";

/** A request for a port that came in by the API's router. */
export interface Forwarded extends Pick<Order, "ref" | "port" | "path" | "prefix"> {
  /** Headers, in lower case, that are not the program's to read. */
  withheld?: readonly string[];
}

/** Puts such requests to the programs inside, without the keys and tokens in them, and the answers to their callers. */
export class Forwarder {
  readonly #context: RouteContext;
  readonly #proxy: PortProxy;
  readonly #gate: Gate;

  constructor(context: RouteContext) {
    this.#context = context;
    this.#proxy = new PortProxy(context);
    this.#gate = new Gate(context.keys);
  }

  async forward(
    { raw }: FastifyRequest,
    reply: FastifyReply,
    { path, withheld = [], ...asked }: Forwarded,
  ): Promise<void> {
    const given = presented(path, raw.headers);
    const keys = await this.#gate.keyHeaders(raw.headers);
    const order = orderFor(raw, {
      ...asked,
      path: given.path,
      withheld: new Set([...given.headers, ...keys, ...withheld, KEY_HEADER]),
      cookie: given.cookie,
      signal: this.#context.callers.signal(reply.raw),
    });
    const answer = await this.#proxy.ask(order);
    reply.hijack();
    const stop = raw.socket && this.#context.peers.watch(raw.socket, () => reply.raw.destroy());
    await answer.send(reply.raw).finally(stop);
  }
}
