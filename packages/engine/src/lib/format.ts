/** This file formats times, sizes, shares and lists of names for people and for API responses. */

/** Formats a time as in API responses. */
export function iso(time: number): string;
export function iso(time: number | null): string | null;
export function iso(time: number | null): string | null {
  return time === null ? null : new Date(time).toISOString();
}

/** Returns whole megabytes, rounded down. */
export const mb = (bytes: number): number => Math.floor(bytes / 1_048_576);

export const seconds = (ms: number): string =>
  ms < 120_000 ? `${Math.round(ms / 1000)} s` : `${Math.round(ms / 60_000)} min`;

export const percent = (share: number): string => `${Math.round(share * 100)} %`;

/** Joins up to `most` names, and adds the number of the remaining ones. */
export const listNames = (names: readonly string[], most = 5): string =>
  names.length <= most
    ? names.join(", ")
    : `${names.slice(0, most).join(", ")} and ${names.length - most} more`;

const plural = (word: string): string => (/(x|s)$/.test(word) ? `${word}es` : `${word}s`);
/** Formats a count with its noun, in the plural if necessary. */
export const counted = (count: number, word: string, many = plural(word)): string =>
  `${count} ${count === 1 ? word : many}`;

const UNITS: readonly [ms: number, word: string][] = [
  [86_400_000, "day"],
  [3_600_000, "hour"],
  [60_000, "minute"],
  [1_000, "second"],
];

/** Formats a duration for people, in the largest unit of which it contains at least two, for example `90 minutes`. */
export function inWords(ms: number): string {
  const [unitMs, word] = UNITS.find(([unit]) => ms >= 2 * unit) ?? [1_000, "second"];
  return counted(Math.round(ms / unitMs), word);
}
