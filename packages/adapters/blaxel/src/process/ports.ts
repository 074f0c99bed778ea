import { Type } from "@fastify/type-provider-typebox";
import { HoldfastError, Port } from "@holdfast/contract";
import type { App, RouteContext } from "@holdfast/server/adapter";
import { acceptAnyBody, Forwarder } from "@holdfast/server/adapter";
import type { FastifyReply, FastifyRequest } from "fastify";
import { InSandbox } from "./process.ts";

const InPort = Type.Object({ ...InSandbox.properties, port: Port });
const METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"] as const;
const BELOW_PORT = /^(.*?\/port\/\d+)(\/[^?]*)?(\?.*)?$/;
/** Headers that the client sends to the platform itself. They are not forwarded to the program. */
const ITS_OWN = ["x-blaxel-workspace", "blaxel-version"];

/** Forwards requests to a program in the sandbox. The path after the port belongs to the program. */
export function portRoutes(app: App, context: RouteContext): void {
  const forwarder = new Forwarder(context);
  acceptAnyBody(app);
  for (const url of ["/port/:port", "/port/:port/*"])
    app.route({ method: [...METHODS], url, schema: { params: InPort }, handler: forward });

  async function forward(request: FastifyRequest, reply: FastifyReply) {
    const { name: ref, port } = request.params as { name: string; port: number };
    const [, prefix, path = "/", query = ""] = BELOW_PORT.exec(request.raw.url ?? "") ?? [];
    if (prefix === undefined) throw new HoldfastError("not_found");
    await forwarder.forward(request, reply, { ref, port, path: path + query, prefix, withheld: ITS_OWN });
  }
}
