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

/** `512Mi`, `1Gi`, in MiB; a part of one counts as a whole. */
export function megabytesIn(where: string, text: string): number {
  const [, count, unit] = /^(\d{1,12}(?:\.\d{1,6})?)([kMGT]?i?)$/.exec(text.trim()) ?? [];
  const size = BYTES[unit ?? "-"];
  if (size === undefined) throw notOne(where, text, "512Mi or 1Gi");
  return Math.ceil((Number(count) * size) / MB);
}

/** `500m`, `0.5`, `2`, in cores. */
export function coresIn(where: string, text: string): number {
  const [, count, milli] = /^(\d{1,9}(?:\.\d{1,6})?)(m?)$/.exec(text.trim()) ?? [];
  if (count === undefined) throw notOne(where, text, "500m or 2");
  return Number(count) / (milli ? 1_000 : 1);
}

const notOne = (where: string, text: string, such: string): HoldfastError =>
  new HoldfastError("invalid_request", {
    message: `${where} is ${JSON.stringify(text.slice(0, 80))}; it must be a quantity such as ${such}.`,
  });
