import { HoldfastError, type Labels } from "@holdfast/contract";

/**
 * Parses a query field that lists known values. The field may be repeated, and each field may contain several values
 * separated by commas. Returns undefined if no value was given.
 */
export function oneOfEach<Value extends string>(
  name: string,
  given: readonly string[] | undefined,
  known: readonly Value[],
): Value[] | undefined {
  const values = given?.flatMap((item) => item.split(",")).filter((item) => item !== "");
  if (!values || values.length === 0) return undefined;
  return values.map((value) => {
    const match = known.find((item) => item === value);
    if (match !== undefined) return match;
    throw new HoldfastError("invalid_request", {
      message: `query/${name} is "${value}"; allowed values: ${known.join(", ")}.`,
    });
  });
}

/** Parses repeated `key=value` filters. An object matches only if it has all of these labels. */
export function labelFilter(given: readonly string[] | undefined): Labels | undefined {
  if (!given || given.length === 0) return undefined;
  return Object.fromEntries(
    given.map((item) => {
      const at = item.indexOf("=");
      if (at > 0) return [item.slice(0, at), item.slice(at + 1)];
      throw new HoldfastError("invalid_request", {
        message: `query/label is "${item}"; it must have the form key=value.`,
      });
    }),
  );
}

const ISO_TIME = /^\d{4}-\d{2}-\d{2}(T\d{2}:\d{2}(:\d{2}(\.\d{1,9})?)?(Z|[+-]\d{2}:?\d{2}))?$/i;

/**
 * Parses a time to milliseconds; a date alone means midnight UTC. An offset is required, because a local time would
 * depend on the server's time zone.
 */
export function timeFilter(name: string, text: string | undefined): number | undefined {
  if (text === undefined) return undefined;
  const at = ISO_TIME.test(text) ? Date.parse(text) : Number.NaN;
  if (!Number.isNaN(at)) return at;
  throw new HoldfastError("invalid_request", {
    message: `query/${name} is "${text}"; it must be an ISO 8601 time with an offset, such as 2026-01-31T12:00:00Z. Write + as %2B in a URL.`,
  });
}
