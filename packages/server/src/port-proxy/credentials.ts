/** What a request for a port has with it that was meant for this server, and the request without it. */
import type { IncomingHttpHeaders } from "node:http";

export const TOKEN_PARAMETER = "holdfast_token";
export const TOKEN_COOKIE = "holdfast_preview";
/** Also those of other platforms' clients. */
const TOKEN_PARAMETERS = [TOKEN_PARAMETER, "bl_preview_token"];
const TOKEN_HEADERS = ["x-holdfast-preview-token", "x-blaxel-preview-token"];

export interface Presented {
  /** Tokens in the order in which they count; those in cookies, which a browser adds by itself, come last. */
  tokens: readonly string[];
  cookieTokens: readonly string[];
  /** Whether one came in the URL, where it stays visible. */
  isInUrl: boolean;
  /** The path without the tokens in it. */
  path: string;
  /** What is left of the cookies; undefined where none was ours, null where nothing is left. */
  cookie: string | null | undefined;
  /** The headers that tokens came in. */
  headers: readonly string[];
}

export function presented(path: string, headers: IncomingHttpHeaders): Presented {
  const inUrl = withoutTokens(path);
  const inCookie = withoutCookie(headers.cookie);
  const inHeaders = TOKEN_HEADERS.filter((name) => typeof headers[name] === "string");
  return {
    tokens: [...inUrl.tokens, ...inHeaders.map((name) => String(headers[name]))],
    cookieTokens: inCookie.tokens,
    isInUrl: inUrl.tokens.length > 0,
    path: inUrl.path,
    cookie: inCookie.tokens.length > 0 ? inCookie.rest : undefined,
    headers: inHeaders,
  };
}

/** Everything else in the query stays as it came, to the letter. */
function withoutTokens(path: string): { tokens: string[]; path: string } {
  const at = path.indexOf("?");
  if (at === -1) return { tokens: [], path };
  const tokens: string[] = [];
  const kept = path
    .slice(at + 1)
    .split("&")
    .filter((pair) => {
      const [name = "", value = ""] = pair.split("=", 2);
      if (!TOKEN_PARAMETERS.includes(name)) return true;
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
