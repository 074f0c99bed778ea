import { hash } from "node:crypto";
import type { IncomingHttpHeaders } from "node:http";
import { HoldfastError, isHoldfastError } from "@holdfast/contract";
import type { RouteFacts } from "./route-config.ts";

/**
 * Alternative header for the API key, for requests whose `Authorization` header is meant for the program in the
 * sandbox.
 */
export const KEY_HEADER = "x-holdfast-key";

/** Key lookup. Implementations store and compare only hashes. */
export interface Keys {
  findKey(secret: string): unknown;
  /**
   * If the given key is a temporary key, returns the key that it stands for. Otherwise returns the given key itself.
   */
  standsFor?(secret: string): string;
}

/** How long a verified key is cached. */
const REMEMBERED_MS = 10_000;
/** Maximum number of cached keys. */
const REMEMBERED_KEYS = 1_000;
const LONGEST_KEY = 256;
/**
 * Length of the owner id, which is a prefix of the key's hash. It is long enough that no two keys of a server get the
 * same id, and does not help to guess the key.
 */
const OWNER_DIGITS = 16;

/**
 * Checks API keys. Only SHA-256 hashes are compared, here and in the store, so the time a comparison takes reveals
 * nothing about a key.
 */
export class KeyCheck {
  readonly #keys: Keys;
  readonly #headers: readonly string[];
  readonly #now: () => number;
  readonly #known = new Map<string, number>();

  /** `adapterHeaders`: headers in which clients of other platforms send their keys. */
  constructor(keys: Keys, adapterHeaders: readonly string[] = [], now: () => number = Date.now) {
    this.#keys = keys;
    this.#headers = [KEY_HEADER, "authorization", ...adapterHeaders];
    this.#now = now;
  }

  /**
   * Returns the owner id of a valid key, from the cache if it was verified recently. Throws `unauthorized` otherwise.
   */
  admit(authorization: string | undefined): string | Promise<string> {
    const given = bearer(authorization);
    if (given === null) throw new HoldfastError("unauthorized");
    const secret = this.#keys.standsFor?.(given) ?? given;
    const digest = hash("sha256", secret, "hex");
    if ((this.#known.get(digest) ?? 0) > this.#now()) return ownerOf(digest);
    return this.#lookUp(secret, digest);
  }

  /**
   * Returns the names of the headers that contain a valid key of this server. Headers with other credentials are not
   * among them, because they are meant for the program in the sandbox.
   */
  async keyHeaders(headers: IncomingHttpHeaders): Promise<string[]> {
    const found: string[] = [];
    for (const name of this.#headers) {
      const value = headers[name];
      if (typeof value !== "string") continue;
      if (await this.#isKey(name === KEY_HEADER ? `Bearer ${value}` : value)) found.push(name);
    }
    return found;
  }

  async #isKey(authorization: string): Promise<boolean> {
    try {
      await this.admit(authorization);
      return true;
    } catch (error) {
      if (isHoldfastError(error) && error.code === "unauthorized") return false;
      throw error;
    }
  }

  async #lookUp(secret: string, digest: string): Promise<string> {
    this.#known.delete(digest);
    if (!(await this.#keys.findKey(secret))) throw new HoldfastError("unauthorized");
    if (this.#known.size >= REMEMBERED_KEYS) this.#known.clear();
    this.#known.set(digest, this.#now() + REMEMBERED_MS);
    return ownerOf(digest);
  }
}

/**
 * Returns the owner id of a key. The id never changes, and is stored with the resources that the key creates, so that
 * they can be counted per key.
 */
const ownerOf = (digest: string): string => `key_${digest.slice(0, OWNER_DIGITS)}`;

function bearer(authorization: string | undefined): string | null {
  const match = authorization === undefined ? null : /^Bearer +([\x21-\x7e]+)$/i.exec(authorization);
  const secret = match?.[1];
  return secret === undefined || secret.length > LONGEST_KEY ? null : secret;
}

/**
 * Returns the credentials of a request, in the form of an `Authorization` header. Which headers may carry them depends
 * on the route.
 */
export function authorizationOf(
  headers: IncomingHttpHeaders,
  { socket, dialect }: RouteFacts,
): string | undefined {
  if (socket) return socketAuthorization(headers);
  const own = headers[KEY_HEADER];
  if (typeof own === "string") return `Bearer ${own}`;
  const foreign = dialect && headers[dialect.keyHeader];
  return typeof foreign === "string" ? foreign : headers.authorization;
}

/** The WebSocket subprotocol that the server selects. */
export const SUBPROTOCOL = "holdfast.v1";
/** Prefix of the WebSocket subprotocol that carries an API key in base64url. */
export const KEY_PROTOCOL = "holdfast.key.";

/**
 * Returns the authorization of a WebSocket request. A page in a browser cannot set headers, so the key may be sent as a
 * subprotocol. The Origin header is not checked: the server uses no cookies and no other credentials that a browser
 * adds on its own, so a page of another site has no key and is refused.
 */
function socketAuthorization(headers: IncomingHttpHeaders): string | undefined {
  if (headers.authorization !== undefined) return headers.authorization;
  const offered = headers["sec-websocket-protocol"]?.split(",").map((protocol) => protocol.trim());
  const encoded = offered?.find((protocol) => protocol.startsWith(KEY_PROTOCOL))?.slice(KEY_PROTOCOL.length);
  return encoded === undefined ? undefined : `Bearer ${Buffer.from(encoded, "base64url").toString("latin1")}`;
}
