import { isName, isSandboxId } from "@holdfast/contract";

/**
 * The target of a port request. A request addresses a port in one of three ways: by the port's own host, by a preview's
 * path, or, with a key, by a path of the API. `path` is passed to the program unchanged: not decoded and not
 * normalized.
 */
export type Target =
  | { via: "host"; ref: string; port: number; path: string }
  | { via: "preview"; by: string; path: string; prefix: string }
  | { via: "path"; ref: string; port: number; path: string; prefix: string };

export const PREVIEW_PATH = "/preview/";

const IN_HOST = /^(\d{1,5})-([a-z0-9_-]+)$/;
/**
 * Matches every path below `/preview/`, even without a valid token, so that a visitor with a damaged URL gets an error
 * page and not the API's error.
 */
const IN_PREVIEW = /^\/preview\/([^/?]*)(\/[^?]*)?(\?.*)?$/;
const IN_API = /^\/v1\/sandboxes\/([^/?]+)\/ports\/(\d{1,5})(\/[^?]*)?(\?.*)?$/;
const ABSOLUTE = /^https?:\/\/[^/?#]*/i;

/**
 * Returns the target of a request. The host name is checked first: on a port's own host every path belongs to the
 * program, never to the API.
 */
export function targetOf(host: string | undefined, url: string, domain: string): Target | null {
  const path = pathOf(url);
  const named = hostTarget(host, domain);
  if (named !== null) return { via: "host", ...named, path };
  const preview = IN_PREVIEW.exec(path);
  if (preview?.[1] !== undefined) {
    const [, by, rest = "/", query = ""] = preview;
    return { via: "preview", by, path: rest + query, prefix: `${PREVIEW_PATH}${by}` };
  }
  return apiTarget(path);
}

function hostTarget(host: string | undefined, domain: string): { ref: string; port: number } | null {
  const [name = ""] = (host ?? "").toLowerCase().split(":", 1);
  if (!name.endsWith(`.${domain}`)) return null;
  const [, digits = "", ref = ""] = IN_HOST.exec(name.slice(0, -domain.length - 1)) ?? [];
  const port = portIn(digits);
  return port !== null && isRef(ref) ? { ref, port } : null;
}

function apiTarget(path: string): Target | null {
  const [, coded, digits, rest = "/", query = ""] = IN_API.exec(path) ?? [];
  if (coded === undefined || digits === undefined) return null;
  const ref = decoded(coded);
  const port = portIn(digits);
  if (ref === null || port === null || !isRef(ref)) return null;
  return { via: "path", ref, port, path: rest + query, prefix: `/v1/sandboxes/${coded}/ports/${digits}` };
}

/**
 * Returns the path in a request line. If the request line contains a complete URL, the host in that URL is ignored,
 * because the Host header determines the target.
 */
function pathOf(url: string): string {
  const path = url.replace(ABSOLUTE, "");
  return path === "" || path.startsWith("?") ? `/${path}` : path;
}

const isRef = (ref: string): boolean => isSandboxId(ref) || isName(ref);

function portIn(digits: string): number | null {
  const port = Number(digits);
  return digits !== "" && port >= 1 && port <= 65_535 ? port : null;
}

function decoded(text: string): string | null {
  try {
    return decodeURIComponent(text);
  } catch {
    return null;
  }
}
