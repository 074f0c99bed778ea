import { Type } from "@fastify/type-provider-typebox";
import { HoldfastError, Port } from "@holdfast/contract";
import type { FastifyReply, FastifyRequest } from "fastify";
import type { App, RouteContext } from "../context.ts";
import { Forwarder } from "../ports/forwarder.ts";
import { targetOf } from "../ports/target.ts";
import { SandboxRef } from "../schemas.ts";
import { takeAnyBody } from "./files.ts";
import { SERVING_ERRORS } from "./sandboxes.ts";

const InPort = Type.Object({ ...SandboxRef.properties, port: Port });
const METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"] as const;

/** Below this, a path is the program's own, whatever it looks like. */
export function portRoutes(app: App, context: RouteContext): void {
  const forwarder = new Forwarder(context);
  takeAnyBody(app);

  for (const url of ["/v1/sandboxes/:ref/ports/:port", "/v1/sandboxes/:ref/ports/:port/*"]) {
    for (const method of METHODS) {
      app.route({
        method,
        url,
        schema: {
          ...(url.endsWith("*") ? described(method) : { hide: true }),
          params: InPort,
        },
        config: { errors: [...SERVING_ERRORS, "port_closed", "port_cut", "port_silent", "too_many_streams"] },
        handler: forward,
      });
    }
  }

  async function forward(request: FastifyRequest, reply: FastifyReply) {
    const { ref, port } = request.params as { ref: string; port: number };
    const target = targetOf(undefined, request.raw.url ?? "/", context.domain);
    // The router is more generous with spellings; where the program's path begins is clear in one of them only.
    if (target?.via !== "path") throw new HoldfastError("not_found");
    await forwarder.forward(request, reply, { ref, port, path: target.path, prefix: target.prefix });
  }
}

const described = (method: string) => ({
  operationId: `${method.toLowerCase()}Port`,
  summary: `${method} to a program that listens at a port inside, over HTTP or as a WebSocket.`,
  description:
    "What follows the port is the program's own path, passed on as it is. A sandbox that sleeps is woken. Errors of Holdfast have its error body; all else is the program's answer. The key is not passed on: where the program wants an Authorization header of its own, send the key as X-Holdfast-Key.",
  tags: ["ports"],
  response: { 200: { description: "Whatever the program answers.", type: "null" } },
});
