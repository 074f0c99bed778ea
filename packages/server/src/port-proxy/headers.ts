/**
 * Rewrites the headers of port requests and responses. Header lists are in Node's raw form: names and values alternate,
 * with repetitions, in their original order.
 */

import { KEY_PROTOCOL } from "../http/api-keys.ts";

/** Hop-by-hop headers of RFC 9110, and the non-standard ones of old proxies. */
const OF_CONNECTION = new Set([
  "connection",
  "keep-alive",
  "proxy-authenticate",
  "proxy-authorization",
  "proxy-connection",
  "te",
  "transfer-encoding",
  "upgrade",
]);

/**
 * Headers of a request that are not forwarded: this server has already answered `Expect` with 100 Continue, and it sets
 * a `Host` header of its own.
 */
const DONE_HERE = new Set(["expect", "host"]);

interface Passage {
  /** The Host header that the program receives. */
  host: string;
  /** Names of headers, in lower case, that carried credentials for this server. */
  withheld: ReadonlySet<string>;
  /** The caller's address, and the host name, protocol and path prefix that the caller used. */
  forwarded: { address: string; host: string; protocol: string; prefix: string };
  /**
   * The Cookie header without the credentials for this server; null if no other cookies are left; undefined if no
   * cookie was a credential, so that the header stays unchanged.
   */
  cookie?: string | null;
  /** Headers that the preview sets, in place of the caller's. */
  set?: Readonly<Record<string, string>>;
}

/**
 * Returns whether no preview can set this header: it belongs to the message's framing or to one connection, or this
 * server sets it itself.
 */
export const ownedByServer = (name: string): boolean =>
  OF_CONNECTION.has(name) ||
  FRAMING.has(name) ||
  DONE_HERE.has(name) ||
  FORWARDED.has(name) ||
  name === ERROR_HEADER;

export type HeaderPairs = readonly (readonly [name: string, value: string])[];

export function pairsOf(raw: readonly string[]): [string, string][] {
  const pairs: [string, string][] = [];
  for (let at = 0; at + 1 < raw.length; at += 2) pairs.push([raw[at] ?? "", raw[at + 1] ?? ""]);
  return pairs;
}

/**
 * The header that delimits a message's body is kept even if `Connection` names it: without it the rest of the body
 * could be read as another message.
 */
const FRAMING = new Set(["content-length"]);

/** Removes hop-by-hop headers, including those that the `Connection` header names. */
function withoutHopByHop(pairs: HeaderPairs): HeaderPairs {
  const named = pairs
    .filter(([name]) => name.toLowerCase() === "connection")
    .flatMap(([, value]) => value.toLowerCase().split(","))
    .map((name) => name.trim())
    .filter((name) => !FRAMING.has(name));
  const dropped = new Set([...OF_CONNECTION, ...named]);
  return pairs.filter(([name]) => !dropped.has(name.toLowerCase()));
}

const FORWARDED = new Set(["x-forwarded-for", "x-forwarded-host", "x-forwarded-proto", "x-forwarded-prefix"]);

/** Headers whose value is a list: a preview's values are added to the program's values and do not replace them. */
const ADDED = new Set(["vary"]);

/** Sets a preview's headers. Each replaces the existing headers of the same name, except for the headers in `ADDED`. */
function withHeaders(pairs: HeaderPairs, set: Readonly<Record<string, string>>): HeaderPairs {
  const names = new Set(Object.keys(set).map((name) => name.toLowerCase()));
  const kept = pairs.filter(([name]) => !names.has(name.toLowerCase()) || ADDED.has(name.toLowerCase()));
  return [...kept, ...Object.entries(set)];
}

/**
 * Returns the request headers for the program. Only this server sets `X-Forwarded-*` headers: those of the caller are
 * removed.
 */
export function requestHeaders(raw: readonly string[], passage: Passage): HeaderPairs {
  const { host, withheld, forwarded, cookie, set = {} } = passage;
  const pairs = pairsOf(raw);
  const kept = withoutHopByHop(pairs).filter(([given]) => {
    const name = given.toLowerCase();
    if (name === "cookie" && cookie !== undefined) return false;
    return !DONE_HERE.has(name) && !FORWARDED.has(name) && !withheld.has(name);
  });
  const passed = withHeaders(kept.flatMap(withoutSecrets), set);
  const isChunked = pairs.some(([name]) => name.toLowerCase() === "transfer-encoding");
  return [
    ["host", host],
    ...passed.filter(([name]) => !isChunked || name.toLowerCase() !== "content-length"),
    ...(isChunked ? [["transfer-encoding", "chunked"] as const] : []),
    ...(cookie ? [["cookie", cookie] as const] : []),
    ["x-forwarded-for", forwarded.address],
    ["x-forwarded-host", forwarded.host],
    ["x-forwarded-proto", forwarded.protocol],
    ...(forwarded.prefix ? [["x-forwarded-prefix", forwarded.prefix] as const] : []),
  ];
}

const TOKEN = /hfp_[a-z0-9]{16}_[A-Za-z0-9_-]{43}/;

/**
 * Removes secrets from a header: Referer URLs can contain tokens, and pages that cannot set headers may send a key as a
 * WebSocket subprotocol.
 */
function withoutSecrets([name, value]: HeaderPairs[number]): HeaderPairs {
  const known = name.toLowerCase();
  if (known === "referer" && TOKEN.test(value)) return [];
  if (known !== "sec-websocket-protocol") return [[name, value]];
  const offered = value.split(",").filter((each) => !each.trim().startsWith(KEY_PROTOCOL));
  return offered.length > 0 ? [[name, offered.join(",").trim()]] : [];
}

/**
 * Content security policy for a page served below a path of this server. The browser treats such a page as part of the
 * server's origin; this policy gives it a separate origin, so that it can't act with the server's.
 */
const UNTRUSTED = "sandbox allow-scripts allow-forms allow-modals allow-popups allow-downloads";

/**
 * Header that marks an error of this server, as opposed to a response of the program. It is removed from responses of
 * programs.
 */
export const ERROR_HEADER = "x-holdfast-error";

/**
 * Headers that are removed from responses of programs served below a path of this server, because they would affect the
 * server's whole origin.
 */
const OF_ORIGIN = new Set(["clear-site-data", "service-worker-allowed", "strict-transport-security"]);

/**
 * Returns the response headers for the caller. Headers that the preview sets replace the program's. A program that is
 * served below a path does not know that path, so the path is added to locations and cookie paths. All cookies are
 * limited to their host and path, including those that the preview sets.
 */
export function responseHeaders(
  raw: readonly string[],
  { prefix, port, set = {} }: { prefix: string; port: number; set?: Readonly<Record<string, string>> },
): string[] {
  const passed = withoutHopByHop(withHeaders(pairsOf(raw), set)).filter(([given]) => {
    const name = given.toLowerCase();
    return name !== ERROR_HEADER && !(prefix !== "" && OF_ORIGIN.has(name));
  });
  const moved = passed.map(([name, value]): readonly [string, string] => {
    const known = name.toLowerCase();
    if (known === "set-cookie") return [name, restrictCookie(value, prefix)];
    if (known === "location" && prefix !== "") return [name, movedBelow(value, prefix, port)];
    return [name, value];
  });
  const added =
    prefix === ""
      ? []
      : [["content-security-policy", UNTRUSTED] as const, ["referrer-policy", "no-referrer"] as const];
  return [...moved, ...added].flat();
}

/**
 * Restricts a cookie to its host and path. The Domain attribute is dropped, because a cookie for a wider domain would
 * be sent to every sandbox.
 */
export function restrictCookie(value: string, prefix: string): string {
  const [pair = "", ...attributes] = value.split(";");
  const kept = attributes.filter((attribute) => !/^\s*domain\s*=/i.test(attribute));
  if (prefix === "") return [pair, ...kept].join(";");
  const path = kept.find((attribute) => /^\s*path\s*=/i.test(attribute));
  const requested = path?.slice(path.indexOf("=") + 1).trim() ?? "/";
  const others = kept.filter((attribute) => attribute !== path);
  return [pair, ...others, ` Path=${prefix}${requested.startsWith("/") ? requested : "/"}`].join(";");
}

function movedBelow(location: string, prefix: string, port: number): string {
  const own = new RegExp(`^http://(?:localhost|127\\.0\\.0\\.1|\\[::1\\]):${port}(?=/|$)`, "i");
  const path = location.replace(own, "");
  return path.startsWith("/") && !path.startsWith("//")
    ? prefix + path
    : path === ""
      ? `${prefix}/`
      : location;
}
