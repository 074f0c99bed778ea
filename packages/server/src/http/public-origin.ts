import type { IncomingHttpHeaders } from "node:http";

/** The origin under which the caller reaches this server, from the request or from a proxy's forwarded headers. */
export interface PublicOrigin {
  protocol: "http" | "https";
  /** Host with its port if the request has one; null if the header is missing or malformed. */
  host: string | null;
}

const HOST = /^[\w.-]+(:\d+)?$|^\[[\da-fA-F:.]+\](:\d+)?$/;

/**
 * Returns the origin under which the caller reaches this server. Forwarded headers are not verified, because the result
 * is only returned to the same caller.
 */
export function publicOrigin(headers: IncomingHttpHeaders): PublicOrigin {
  const host = first(headers["x-forwarded-host"]) ?? headers.host ?? "";
  return {
    protocol: first(headers["x-forwarded-proto"]) === "https" ? "https" : "http",
    host: HOST.test(host) ? host : null,
  };
}

/** Returns the first value of a header: the one that the proxy closest to the caller has set. */
export const first = (value: string | string[] | undefined): string | undefined =>
  [value].flat()[0]?.split(",", 1)[0]?.trim();
