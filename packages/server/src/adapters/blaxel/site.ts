import type { FastifyRequest } from "fastify";
import type { Site } from "./shapes.ts";

/** Where all of it is mounted. */
export const MOUNTED_AT = "/compat/blaxel";

const DEFAULT_WORKSPACE = "holdfast";
const HOST = /^[\w.-]+(:\d+)?$|^\[[\da-fA-F:.]+\](:\d+)?$/;

/**
 * Where the caller finds this server: the way it came, as it tells it itself or as a proxy passes on. Nobody else reads the
 * answer, so a caller that lies here misleads itself.
 */
export function siteOf(request: FastifyRequest): Site {
  const { headers } = request;
  const host = one(headers["x-forwarded-host"]) ?? headers.host ?? "";
  const protocol = one(headers["x-forwarded-proto"]) === "https" ? "https" : request.protocol;
  return {
    workspace: one(headers["x-blaxel-workspace"]) || DEFAULT_WORKSPACE,
    base: HOST.test(host) ? `${protocol}://${host}${MOUNTED_AT}` : null,
  };
}

/** The first of a header's values: that of the proxy that is next to the caller. */
const one = (value: string | string[] | undefined): string | undefined =>
  [value].flat()[0]?.split(",", 1)[0]?.trim();
