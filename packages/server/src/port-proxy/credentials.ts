/** Separates the credentials that a port request carries for this server from the rest of the request. */
import type { IncomingHttpHeaders } from "node:http";
import type { Adapter, TokenPlaces } from "../http/adapter.ts";

export const TOKEN_PARAMETER = "holdfast_token";
export const TOKEN_COOKIE = "holdfast_preview";
const TOKEN_HEADER = "x-holdfast-preview-token";

/** Returns the places in which a request may carry a preview token: Holdfast's own and those of the adapters. */
export const tokenPlaces = (adapters: readonly Adapter[] = []): TokenPlaces => ({
  parameters: [TOKEN_PARAMETER, ...adapters.flatMap(({ previewTokens }) => previewTokens?.parameters ?? [])],
  headers: [TOKEN_HEADER, ...adapters.flatMap(({ previewTokens }) => previewTokens?.headers ?? [])],
});

export interface Presented {
  /**
   * Tokens from the URL and from headers, in order of precedence. They take precedence over tokens in cookies, which a
   * browser adds on its own.
   */
  tokens: readonly string[];
  cookieTokens: readonly string[];
  /** Whether a token was in the URL, where other people may see it. */
  isInUrl: boolean;
  /** The path without the tokens. */
  path: string;
  /**
   * The Cookie header without the tokens; null if no other cookies are left; undefined if no cookie was a token, so
   * that the header stays unchanged.
   */
  cookie: string | null | undefined;
  /** Names of the headers that carried tokens. */
  headers: readonly string[];
}

export function presented(
  path: string,
  headers: IncomingHttpHeaders,
  places: TokenPlaces = tokenPlaces(),
): Presented {
  const inUrl = withoutTokens(path, places.parameters);
  const inCookie = withoutCookie(headers.cookie);
  const inHeaders = places.headers.filter((name) => typeof headers[name] === "string");
  return {
    tokens: [...inUrl.tokens, ...inHeaders.map((name) => String(headers[name]))],
    cookieTokens: inCookie.tokens,
    isInUrl: inUrl.tokens.length > 0,
    path: inUrl.path,
    cookie: inCookie.tokens.length > 0 ? inCookie.rest : undefined,
    headers: inHeaders,
  };
}

/** Extracts the tokens of the query string. The other parameters stay byte for byte as they were. */
function withoutTokens(path: string, parameters: readonly string[]): { tokens: string[]; path: string } {
  const at = path.indexOf("?");
  if (at === -1) return { tokens: [], path };
  const tokens: string[] = [];
  const kept = path
    .slice(at + 1)
    .split("&")
    .filter((pair) => {
      const [name = "", value = ""] = pair.split("=", 2);
      if (!parameters.includes(name)) return true;
      tokens.push(value);
      return false;
    });
  if (tokens.length === 0) return { tokens, path };
  return { tokens, path: path.slice(0, at) + (kept.length > 0 ? `?${kept.join("&")}` : "") };
}

function withoutCookie(cookie: string | undefined): { tokens: string[]; rest: string | null } {
  const all = (cookie ?? "").split(";").map((pair) => pair.trim());
  const isOurs = (pair: string) => pair.startsWith(`${TOKEN_COOKIE}=`);
  const rest = all.filter((pair) => pair !== "" && !isOurs(pair));
  return {
    tokens: all.filter(isOurs).map((pair) => pair.slice(TOKEN_COOKIE.length + 1)),
    rest: rest.length > 0 ? rest.join("; ") : null,
  };
}
