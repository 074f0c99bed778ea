import type { Scrub } from "./scrub.ts";

/** Returns a copy of a JSON value with host paths removed from every string in it. */
export function scrubJson<Value>(value: Value, scrub: Scrub): Value {
  const clean = (part: unknown): unknown => {
    if (typeof part === "string") return scrub(part);
    if (Array.isArray(part)) return part.map(clean);
    if (part === null || typeof part !== "object") return part;
    return Object.fromEntries(Object.entries(part).map(([key, inner]) => [key, clean(inner)]));
  };
  return clean(value) as Value;
}
