import type { FastifyReply, FastifyRequest } from "fastify";
import { KEY_HEADER } from "../http/api-keys.ts";
import type { RouteContext } from "../http/context.ts";
import { presented } from "./credentials.ts";
import { PortProxy, type PortRequest } from "./port-proxy.ts";
import { portRequestFor } from "./port-router.ts";

/** A request for a port that arrived through the API's router. */
interface Forwarded extends Pick<PortRequest, "ref" | "port" | "path" | "prefix"> {
  /** Names of headers, in lower case, that must not reach the program. */
  withheld?: readonly string[];
}

/**
 * Forwards API requests for a port to the program in the sandbox, without keys and tokens, and streams the response
 * back.
 */
export class Forwarder {
  readonly #context: RouteContext;
  readonly #proxy: PortProxy;

  constructor(context: RouteContext) {
    this.#context = context;
    this.#proxy = new PortProxy(context);
  }

  async forward(
    { raw }: FastifyRequest,
    reply: FastifyReply,
    { path, withheld = [], ...asked }: Forwarded,
  ): Promise<void> {
    const given = presented(path, raw.headers, this.#context.tokenPlaces);
    const keys = await this.#context.keyCheck.keyHeaders(raw.headers);
    const order = portRequestFor(raw, {
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
