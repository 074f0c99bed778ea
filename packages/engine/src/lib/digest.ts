import { hash } from "node:crypto";

/** Identifies the content of a request, so that a repeated request is recognised. */
export interface Digest {
  readonly text: string;
  /**
   * Whether a stored digest identifies the same content. Also accepts digests of earlier versions, which depended on
   * the order of the keys.
   */
  matches(stored: string): boolean;
}

/**
 * Returns the digest of plain data. The digest does not depend on the order of object keys, which carries no meaning in
 * JSON.
 */
export function digestOf(value: unknown): Digest {
  const text = hash("sha256", JSON.stringify(value, sortKeys));
  return { text, matches: (stored) => stored === text || stored === hash("sha256", JSON.stringify(value)) };
}

const sortKeys = (_key: string, value: unknown): unknown =>
  typeof value === "object" && value !== null && !Array.isArray(value)
    ? Object.fromEntries(Object.entries(value).sort(([one], [other]) => (one < other ? -1 : 1)))
    : value;
