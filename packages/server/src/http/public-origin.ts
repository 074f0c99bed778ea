import type { IncomingHttpHeaders } from "node:http";

/** Where the caller finds this server: the way it came, as it tells it itself or as a proxy passes on. */
export interface Site {
  protocol: "http" | "https";
  /** With the port, where that is said; null where nothing sensible is. */
  host: string | null;
}

const HOST = /^[\w.-]+(:\d+)?$|^\[[\da-fA-F:.]+\](:\d+)?$/;

/** Nobody but the caller reads what is made of it, so one that lies here misleads itself. */
export function siteOf(headers: IncomingHttpHeaders): Site {
  const host = first(headers["x-forwarded-host"]) ?? headers.host ?? "";
  return {
    protocol: first(headers["x-forwarded-proto"]) === "https" ? "https" : "http",
    host: HOST.test(host) ? host : null,
  };
}

/** The first of a header's values: that of the proxy that is next to the caller. */
export const first = (value: string | string[] | undefined): string | undefined =>
  [value].flat()[0]?.split(",", 1)[0]?.trim();
