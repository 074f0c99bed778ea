import type { FastifyRequest } from "fastify";
import { first, siteOf as whereAsked } from "../../site.ts";
import type { Site } from "./shapes.ts";

/** Where all of it is mounted. */
export const MOUNTED_AT = "/compat/blaxel";

const DEFAULT_WORKSPACE = "holdfast";

export function siteOf({ headers }: Pick<FastifyRequest, "headers">): Site {
  const { protocol, host } = whereAsked(headers);
  return {
    workspace: first(headers["x-blaxel-workspace"]) || DEFAULT_WORKSPACE,
    base: host === null ? null : `${protocol}://${host}${MOUNTED_AT}`,
  };
}
