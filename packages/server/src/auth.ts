import { hash } from "node:crypto";
import { HoldfastError } from "@holdfast/contract";

/** Where keys are looked up. It keeps hashes only, and compares those. */
export interface Keys {
  findKey(secret: string): unknown;
}

/** A key that was found is not looked up again for this long, and at most so many are remembered. */
const REMEMBERED_MS = 10_000;
const REMEMBERED_KEYS = 1_000;
const LONGEST_KEY = 256;

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

  /** Returns at once for a key seen lately; throws `unauthorized`. */
  admit(authorization: string | undefined): void | Promise<void> {
    const secret = bearer(authorization);
    if (secret === null) throw new HoldfastError("unauthorized");
    const digest = hash("sha256", secret, "base64");
    if ((this.#known.get(digest) ?? 0) > this.#now()) return;
    return this.#lookUp(secret, digest);
  }

  async #lookUp(secret: string, digest: string): Promise<void> {
    this.#known.delete(digest);
    if (!(await this.#keys.findKey(secret))) throw new HoldfastError("unauthorized");
    if (this.#known.size >= REMEMBERED_KEYS) this.#known.clear();
    this.#known.set(digest, this.#now() + REMEMBERED_MS);
  }
}

function bearer(authorization: string | undefined): string | null {
  const match = authorization === undefined ? null : /^Bearer +([\x21-\x7e]+)$/i.exec(authorization);
  const secret = match?.[1];
  return secret === undefined || secret.length > LONGEST_KEY ? null : secret;
}
