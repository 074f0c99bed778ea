import { hash } from "node:crypto";
import type { IncomingHttpHeaders } from "node:http";
import { HoldfastError, isHoldfastError } from "@holdfast/contract";
import type { RouteFacts } from "./route-config.ts";

/** Where a key may come as well: for requests whose `Authorization` is somebody else's to read. */
export const KEY_HEADER = "x-holdfast-key";
/** Where the clients of another platform send theirs. */
export const BLAXEL_KEY_HEADER = "x-blaxel-authorization";

/** Where keys are looked up. It keeps hashes only, and compares those. */
export interface Keys {
  findKey(secret: string): unknown;
}

/** A key that was found is not looked up again for this long, and at most so many are remembered. */
const REMEMBERED_MS = 10_000;
const REMEMBERED_KEYS = 1_000;
const LONGEST_KEY = 256;
/** Enough of the hash that no two keys of a server share it; nothing that a key could be guessed from. */
const OWNER_DIGITS = 16;

/**
 * Decides who may come in. What is compared, here and in the store, are SHA-256 hashes of what was presented, so the
 * time that takes says nothing about a key.
 */
export class Gate {
  readonly #keys: Keys;
  readonly #now: () => number;
  readonly #known = new Map<string, number>();

  constructor(keys: Keys, now: () => number = Date.now) {
    this.#keys = keys;
    this.#now = now;
  }

  /** The id of the key, at once for one seen lately; throws `unauthorized`. */
  admit(authorization: string | undefined): string | Promise<string> {
    const secret = bearer(authorization);
    if (secret === null) throw new HoldfastError("unauthorized");
    const digest = hash("sha256", secret, "hex");
    if ((this.#known.get(digest) ?? 0) > this.#now()) return ownerOf(digest);
    return this.#lookUp(secret, digest);
  }

  /** The headers that keys came in. What is no key of ours is somebody else's. */
  async keyHeaders(headers: IncomingHttpHeaders): Promise<string[]> {
    const found: string[] = [];
    for (const name of [KEY_HEADER, "authorization", BLAXEL_KEY_HEADER]) {
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

/** The same for as long as the key is. Stored with what the key creates, so that it can be counted. */
const ownerOf = (digest: string): string => `key_${digest.slice(0, OWNER_DIGITS)}`;

function bearer(authorization: string | undefined): string | null {
  const match = authorization === undefined ? null : /^Bearer +([\x21-\x7e]+)$/i.exec(authorization);
  const secret = match?.[1];
  return secret === undefined || secret.length > LONGEST_KEY ? null : secret;
}

/** Where a request says who it comes from, by what its route knows of its callers. */
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

/** What a socket's server answers with, and the prefix of the subprotocol that carries a key in base64url. */
export const SUBPROTOCOL = "holdfast.v1";
export const KEY_PROTOCOL = "holdfast.key.";

/**
 * The authorization of a request for a WebSocket. A browser's page can't set its headers, so the key may come as one of
 * the subprotocols. There are no cookies and no other authority that a browser would add by itself, so a page of another
 * site that opens a socket comes without a key and is refused like everybody without one; the Origin header decides nothing.
 */
export function socketAuthorization(headers: IncomingHttpHeaders): string | undefined {
  if (headers.authorization !== undefined) return headers.authorization;
  const offered = headers["sec-websocket-protocol"]?.split(",").map((protocol) => protocol.trim());
  const encoded = offered?.find((protocol) => protocol.startsWith(KEY_PROTOCOL))?.slice(KEY_PROTOCOL.length);
  return encoded === undefined ? undefined : `Bearer ${Buffer.from(encoded, "base64url").toString("latin1")}`;
}
