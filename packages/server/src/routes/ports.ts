import { Type } from "@fastify/type-provider-typebox";
import { HoldfastError, Port } from "@holdfast/contract";
import type { FastifyReply, FastifyRequest } from "fastify";
import type { App, RouteContext } from "../http/context.ts";
import { SandboxRef } from "../http/schemas.ts";
import { Forwarder } from "../port-proxy/api-forwarder.ts";
import { targetOf } from "../port-proxy/target.ts";
import { acceptAnyBody } from "./files.ts";
import { SERVING_ERRORS } from "./sandboxes.ts";

const InPort = Type.Object({ ...SandboxRef.properties, port: Port });
const METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"] as const;

/**
 * Forwards requests to a port. The rest of the path, after the port, is meant for the program and is not interpreted
 * here.
 */
export function portRoutes(app: App, context: RouteContext): void {
  const forwarder = new Forwarder(context);
  acceptAnyBody(app);

  for (const url of ["/v1/sandboxes/:ref/ports/:port", "/v1/sandboxes/:ref/ports/:port/*"]) {
    for (const method of METHODS) {
      app.route({
        method,
        url,
        schema: {
          ...(url.endsWith("*") ? described(method) : { hide: true }),
          params: InPort,
        },
        config: {
          anyQuery: true,
          errors: [...SERVING_ERRORS, "port_closed", "port_cut", "port_silent", "too_many_streams"],
        },
        handler: forward,
      });
    }
  }

  async function forward(request: FastifyRequest, reply: FastifyReply) {
    const { ref, port } = request.params as { ref: string; port: number };
    const target = targetOf(undefined, request.raw.url ?? "/", context.domain);
    // The API's router accepts several spellings of a path. Only the canonical spelling is accepted for ports, because
    // in any other spelling it is unclear where the path for the program begins.
    if (target?.via !== "path") throw new HoldfastError("not_found");
    await forwarder.forward(request, reply, { ref, port, path: target.path, prefix: target.prefix });
  }
}

const described = (method: string) => ({
  operationId: `${method.toLowerCase()}Port`,
  summary: `Send a ${method} request or a WebSocket to a program that listens on a port of the sandbox.`,
  description:
    "The path after the port is passed to the program unchanged. Wakes a sandbox in standby. Holdfast's own errors have the Holdfast error body; every other response comes from the program. The key is not passed on: if the program needs its own Authorization header, send the key as X-Holdfast-Key.",
  tags: ["ports"],
  response: { 200: { description: "The program's response.", type: "null" } },
});
