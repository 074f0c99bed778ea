/**
 * What is passed on of the headers of a request to a port, and of its answer. Lists are as Node gives them: names and values in
 * turn, with repeated ones and in the order they came.
 */

import { KEY_PROTOCOL } from "../auth.ts";

/** Those that are of one connection alone, by RFC 9110, and what old proxies made up beside them. */
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

/** Answered here already: 100 was sent when the request came. */
const DONE_HERE = new Set(["expect", "host"]);

export interface Passage {
  /** What the program inside is to take for its own name. */
  host: string;
  /** Names of headers, in lower case, that were meant for this server. */
  withheld: ReadonlySet<string>;
  /** Where the caller came from, and what it asked for. */
  forwarded: { address: string; host: string; protocol: string; prefix: string };
  /** The cookies that are left, where some were meant for this server. */
  cookie?: string | null;
}

export type HeaderPairs = readonly (readonly [name: string, value: string])[];

export function pairsOf(raw: readonly string[]): [string, string][] {
  const pairs: [string, string][] = [];
  for (let at = 0; at + 1 < raw.length; at += 2) pairs.push([raw[at] ?? "", raw[at + 1] ?? ""]);
  return pairs;
}

/** What says where a message ends can't be named away: the rest of it would be taken for another one. */
const FRAMING = new Set(["content-length"]);

/** Those that the `Connection` header names are of the connection too. */
function passing(pairs: HeaderPairs): HeaderPairs {
  const named = pairs
    .filter(([name]) => name.toLowerCase() === "connection")
    .flatMap(([, value]) => value.toLowerCase().split(","))
    .map((name) => name.trim())
    .filter((name) => !FRAMING.has(name));
  const dropped = new Set([...OF_CONNECTION, ...named]);
  return pairs.filter(([name]) => !dropped.has(name.toLowerCase()));
}

const FORWARDED = new Set(["x-forwarded-for", "x-forwarded-host", "x-forwarded-proto", "x-forwarded-prefix"]);

/** The headers of a request as the program inside gets them. What is said of the way here is said by this server alone. */
export function requestHeaders(raw: readonly string[], passage: Passage): HeaderPairs {
  const { host, withheld, forwarded, cookie } = passage;
  const pairs = pairsOf(raw);
  const kept = passing(pairs).filter(([given]) => {
    const name = given.toLowerCase();
    if (name === "cookie" && cookie !== undefined) return false;
    return !DONE_HERE.has(name) && !FORWARDED.has(name) && !withheld.has(name);
  });
  const told = kept.flatMap(withoutSecrets);
  const isChunked = pairs.some(([name]) => name.toLowerCase() === "transfer-encoding");
  return [
    ["host", host],
    ...told.filter(([name]) => !isChunked || name.toLowerCase() !== "content-length"),
    ...(isChunked ? [["transfer-encoding", "chunked"] as const] : []),
    ...(cookie ? [["cookie", cookie] as const] : []),
    ["x-forwarded-for", forwarded.address],
    ["x-forwarded-host", forwarded.host],
    ["x-forwarded-proto", forwarded.protocol],
    ...(forwarded.prefix ? [["x-forwarded-prefix", forwarded.prefix] as const] : []),
  ];
}

const TOKEN = /hfp_[a-z0-9]{16}_[A-Za-z0-9_-]{43}/;

/** Browsers repeat URLs, with the tokens in them, and pages that can't set headers offer a key as a protocol. */
function withoutSecrets([name, value]: HeaderPairs[number]): HeaderPairs {
  const known = name.toLowerCase();
  if (known === "referer" && TOKEN.test(value)) return [];
  if (known !== "sec-websocket-protocol") return [[name, value]];
  const offered = value.split(",").filter((each) => !each.trim().startsWith(KEY_PROTOCOL));
  return offered.length > 0 ? [[name, offered.join(",").trim()]] : [];
}

/** A page below a path of this server has the server's own origin: it must not act as it. */
const UNTRUSTED = "sandbox allow-scripts allow-forms allow-modals allow-popups allow-downloads";

/** Tells an error of this server from whatever a program answers: no program has it. */
export const ERROR_HEADER = "x-holdfast-error";

/** Those by which a page below a path of this server would speak for all of the server's origin. */
const OF_ORIGIN = new Set(["clear-site-data", "service-worker-allowed", "strict-transport-security"]);

/**
 * The headers of an answer as the caller gets them. A program that is found below a path is told nothing of it, so what it says of
 * paths is moved there; cookies are kept to the host, and the path, that they came from.
 */
export function answerHeaders(
  raw: readonly string[],
  { prefix, port }: { prefix: string; port: number },
): string[] {
  const said = passing(pairsOf(raw)).filter(([given]) => {
    const name = given.toLowerCase();
    return name !== ERROR_HEADER && !(prefix !== "" && OF_ORIGIN.has(name));
  });
  const moved = said.map(([name, value]): readonly [string, string] => {
    const known = name.toLowerCase();
    if (known === "set-cookie") return [name, ownCookie(value, prefix)];
    if (known === "location" && prefix !== "") return [name, below(value, prefix, port)];
    return [name, value];
  });
  const added =
    prefix === ""
      ? []
      : [["content-security-policy", UNTRUSTED] as const, ["referrer-policy", "no-referrer"] as const];
  return [...moved, ...added].flat();
}

/** A cookie for a wider domain would be every sandbox's. */
export function ownCookie(value: string, prefix: string): string {
  const [pair = "", ...attributes] = value.split(";");
  const kept = attributes.filter((attribute) => !/^\s*domain\s*=/i.test(attribute));
  if (prefix === "") return [pair, ...kept].join(";");
  const path = kept.find((attribute) => /^\s*path\s*=/i.test(attribute));
  const said = path?.slice(path.indexOf("=") + 1).trim() ?? "/";
  const others = kept.filter((attribute) => attribute !== path);
  return [pair, ...others, ` Path=${prefix}${said.startsWith("/") ? said : "/"}`].join(";");
}

function below(location: string, prefix: string, port: number): string {
  const own = new RegExp(`^http://(?:localhost|127\\.0\\.0\\.1|\\[::1\\]):${port}(?=/|$)`, "i");
  const path = location.replace(own, "");
  return path.startsWith("/") && !path.startsWith("//")
    ? prefix + path
    : path === ""
      ? `${prefix}/`
      : location;
}
