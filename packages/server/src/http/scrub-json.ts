import type { Scrub } from "./errors.ts";

/** The same value with the host's paths taken out of every text in it. Of data, as it goes into JSON. */
export function scrubbed<Value>(value: Value, scrub: Scrub): Value {
  const clean = (part: unknown): unknown => {
    if (typeof part === "string") return scrub(part);
    if (Array.isArray(part)) return part.map(clean);
    if (part === null || typeof part !== "object") return part;
    return Object.fromEntries(Object.entries(part).map(([key, inner]) => [key, clean(inner)]));
  };
  return clean(value) as Value;
}
