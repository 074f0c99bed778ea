import { HoldfastError } from "@holdfast/contract";

const BYTES: Readonly<Record<string, number>> = {
  "": 1,
  k: 1e3,
  Ki: 1_024,
  M: 1e6,
  Mi: 1_048_576,
  G: 1e9,
  Gi: 1_073_741_824,
  T: 1e12,
  Ti: 1_099_511_627_776,
};
const MB = 1_048_576;

/** Parses `512Mi` or `1Gi` to MiB, rounded up; null if the text is not a quantity. */
export function megabytesOf(text: string): number | null {
  const [, count, unit] = /^(\d{1,12}(?:\.\d{1,6})?)([kMGT]?i?)$/.exec(text.trim()) ?? [];
  const size = BYTES[unit ?? "-"];
  return size === undefined ? null : Math.ceil((Number(count) * size) / MB);
}

/** Parses `500m`, `0.5` or `2` to cores; null if the text is not a quantity. */
export function coresOf(text: string): number | null {
  const [, count, milli] = /^(\d{1,9}(?:\.\d{1,6})?)(m?)$/.exec(text.trim()) ?? [];
  return count === undefined ? null : Number(count) / (milli ? 1_000 : 1);
}

export function megabytesIn(where: string, text: string): number {
  const megabytes = megabytesOf(text);
  if (megabytes === null) throw notOne(where, text, "512Mi or 1Gi");
  return megabytes;
}

export function coresIn(where: string, text: string): number {
  const cores = coresOf(text);
  if (cores === null) throw notOne(where, text, "500m or 2");
  return cores;
}

/** Returns the text with which the create request gave an amount; undefined if the amount has changed since. */
export const sameQuantity = (
  text: unknown,
  amount: number,
  parse: (text: string) => number | null,
): string | undefined => (typeof text === "string" && parse(text) === amount ? text : undefined);

const notOne = (where: string, text: string, such: string): HoldfastError =>
  new HoldfastError("invalid_request", {
    message: `${where} is ${JSON.stringify(text.slice(0, 80))}; it must be a quantity such as ${such}.`,
  });
