import { first, publicOrigin as readPublicOrigin } from "@holdfast/server/adapter";
import type { FastifyRequest } from "fastify";
import type { PublicOrigin } from "../shapes.ts";

/** Base path of the adapter. */
export const MOUNTED_AT = "/compat/blaxel";

const DEFAULT_WORKSPACE = "holdfast";

export function publicOrigin({ headers }: Pick<FastifyRequest, "headers">): PublicOrigin {
  const { protocol, host } = readPublicOrigin(headers);
  return {
    workspace: first(headers["x-blaxel-workspace"]) || DEFAULT_WORKSPACE,
    base: host === null ? null : `${protocol}://${host}${MOUNTED_AT}`,
  };
}
