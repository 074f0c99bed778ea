/**
 * Formats a table. Each column is as wide as its widest cell, and columns are two spaces apart.
 */
export function table(head: readonly string[], rows: readonly (readonly string[])[]): string {
  const all = [head, ...rows.map((row) => row.map(printable))];
  const widths = head.map((_, column) => Math.max(...all.map((row) => row[column]?.length ?? 0)));
  return all
    .map(
      (row) =>
        `${row
          .map((cell, at) => cell.padEnd(widths[at] ?? 0))
          .join("  ")
          .trimEnd()}\n`,
    )
    .join("");
}

/** Control characters, line and paragraph separators, bidirectional controls, and lone surrogates. */
const UNPRINTABLE = /[\p{Cc}\p{Zl}\p{Zp}\p{Cs}\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff]/gu;

/** Escapes unprintable characters: text from a sandbox must not control the terminal or disguise other text. */
export const printable = (text: string): string =>
  text.replace(UNPRINTABLE, (character) => {
    const code = character.charCodeAt(0).toString(16);
    return code.length > 2 ? `\\u{${code}}` : `\\x${code.padStart(2, "0")}`;
  });

/** Formats one fact per line; facts without a value are omitted. */
export const factsheet = (facts: readonly (readonly [string, string | null | undefined])[]): string =>
  facts
    .filter(([, value]) => value)
    .map(([key, value]) => `${`${key}:`.padEnd(16)}${printable(value ?? "")}\n`)
    .join("");

export const labelsOf = (labels: Record<string, string>): string =>
  Object.entries(labels)
    .map(([key, value]) => `${key}=${value}`)
    .join(" ");

export const counted = (count: number, one: string, many = `${one}s`): string =>
  `${count} ${count === 1 ? one : many}`;

export const asJson = (value: unknown): string => `${jsonText(value, 2)}\n`;

/**
 * Serializes a value as JSON with unprintable characters escaped. The text can't control a terminal, and a program that
 * parses it gets the same value.
 */
export const jsonText = (value: unknown, indent?: number): string =>
  JSON.stringify(value, null, indent).replace(UNPRINTABLE, (character) =>
    character === "\n" ? character : `\\u${character.charCodeAt(0).toString(16).padStart(4, "0")}`,
  );

const UNITS: readonly [string, number][] = [
  ["d", 86_400],
  ["h", 3_600],
  ["m", 60],
];

/** Formats a duration in its largest unit: "3m", "2h", "5d". */
export function span(ms: number): string {
  const seconds = Math.max(0, Math.round(ms / 1000));
  const unit = UNITS.find(([, size]) => seconds >= size);
  return unit === undefined ? `${seconds}s` : `${Math.floor(seconds / unit[1])}${unit[0]}`;
}

/** Formats how long ago a time was. */
export const age = (iso: string, now: number = Date.now()): string => span(now - Date.parse(iso));

/** Formats how far ahead a time is: "in 3m", or "now" if it has passed. */
export function ahead(iso: string, now: number = Date.now()): string {
  const ms = Date.parse(iso) - now;
  return ms > 0 ? `in ${span(ms)}` : "now";
}

/** Formats the time from `from` to `to`, or to now: "0.25s", "3m". */
export function elapsed(from: string, to: string | null, now: number = Date.now()): string {
  const until = to === null ? now : Date.parse(to);
  const seconds = Math.max(0, until - Date.parse(from)) / 1000;
  return seconds < 10 ? `${seconds.toFixed(2)}s` : age(from, until);
}

const SIZES = ["B", "kB", "MB", "GB", "TB"];

/** Formats bytes in the same units as limits: a megabyte is 1,048,576 bytes. */
export function size(bytes: number): string {
  let value = bytes;
  let unit = 0;
  for (; value >= 1024 && unit < SIZES.length - 1; unit++) value /= 1024;
  return `${unit === 0 ? value : value.toFixed(1)} ${SIZES[unit]}`;
}

/** Longest command line shown. */
const COMMAND_CHARACTERS = 60;

export function commandLine({ argv }: { argv: readonly string[] }): string {
  const line = argv.join(" ");
  return line.length > COMMAND_CHARACTERS ? `${line.slice(0, COMMAND_CHARACTERS - 1)}…` : line;
}
