import { HoldfastError } from "@holdfast/contract";

const UNITS: Readonly<Record<string, number>> = { ms: 1, s: 1_000, m: 60_000, h: 3_600_000, d: 86_400_000 };
const PART = /(\d{1,12}(?:\.\d{1,6})?)(ms|s|m|h|d)/g;
const WHOLE = new RegExp(`^(?:${PART.source})+$`);

/** Parses `250ms`, `30s`, `1h30m` or `0` to milliseconds; null if malformed. */
export function durationMs(text: string): number | null {
  const trimmed = text.trim();
  if (trimmed === "0") return 0;
  if (!WHOLE.test(trimmed)) return null;
  const parts = [...trimmed.matchAll(PART)];
  return Math.round(
    parts.reduce((sum, [, count, unit]) => sum + Number(count) * (UNITS[unit ?? ""] ?? 0), 0),
  );
}

/** Parses the duration in a field of a request; throws if it is malformed. `where` names the field in the error. */
export function durationIn(where: string, text: string): number {
  const ms = durationMs(text);
  if (ms !== null) return ms;
  throw new HoldfastError("invalid_request", {
    message: `${where} is ${JSON.stringify(text.slice(0, 80))}; it must be a duration such as 30s, 5m or 1h30m.`,
  });
}

/** Formats a duration as the client does: in the largest unit without a remainder. */
export function durationText(ms: number): string {
  const [unit, size] = Object.entries(UNITS)
    .filter(([name]) => name !== "d")
    .findLast(([, each]) => ms % each === 0) ?? ["ms", 1];
  return `${ms / size}${unit}`;
}
