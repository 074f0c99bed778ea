import { Type } from "@fastify/type-provider-typebox";
import { HoldfastError, Port } from "@holdfast/contract";
import type { FastifyReply, FastifyRequest } from "fastify";
import type { App, RouteContext } from "../../context.ts";
import { Forwarder } from "../../ports/forwarder.ts";
import { takeAnyBody } from "../../routes/files.ts";
import { InSandbox } from "./process.ts";

const InPort = Type.Object({ ...InSandbox.properties, port: Port });
const METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"] as const;
const BELOW_PORT = /^(.*?\/port\/\d+)(\/[^?]*)?(\?.*)?$/;
/** What the client says of itself; the program inside is not whom it is said to. */
const ITS_OWN = ["x-blaxel-workspace", "blaxel-version"];

/** A program that listens inside, for who may call the sandbox: what follows the port is the program's own. */
export function portRoutes(app: App, context: RouteContext): void {
  const forwarder = new Forwarder(context);
  takeAnyBody(app);
  for (const url of ["/port/:port", "/port/:port/*"])
    app.route({ method: [...METHODS], url, schema: { params: InPort }, handler: forward });

  async function forward(request: FastifyRequest, reply: FastifyReply) {
    const { name: ref, port } = request.params as { name: string; port: number };
    const [, prefix, path = "/", query = ""] = BELOW_PORT.exec(request.raw.url ?? "") ?? [];
    if (prefix === undefined) throw new HoldfastError("not_found");
    await forwarder.forward(request, reply, { ref, port, path: path + query, prefix, withheld: ITS_OWN });
  }
}
