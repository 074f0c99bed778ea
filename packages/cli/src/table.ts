/** Columns as wide as their content, two blanks apart. */
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

/** Names and messages may come out of a sandbox: nothing in them may drive the terminal. */
export const printable = (text: string): string =>
  text.replace(/\p{Cc}/gu, (character) => `\\x${character.charCodeAt(0).toString(16).padStart(2, "0")}`);

/** One fact a line, without those that there is nothing to say of. */
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

export const asJson = (value: unknown): string => `${JSON.stringify(value, null, 2)}\n`;

const UNITS: readonly [string, number][] = [
  ["d", 86_400],
  ["h", 3_600],
  ["m", 60],
];

/** "3m", "2h", "5d": in its largest unit. */
export function span(ms: number): string {
  const seconds = Math.max(0, Math.round(ms / 1000));
  const unit = UNITS.find(([, size]) => seconds >= size);
  return unit === undefined ? `${seconds}s` : `${Math.floor(seconds / unit[1])}${unit[0]}`;
}

/** How long ago. */
export const age = (iso: string, now: number = Date.now()): string => span(now - Date.parse(iso));

/** "in 3m", or "now" where that time has come. */
export function ahead(iso: string, now: number = Date.now()): string {
  const ms = Date.parse(iso) - now;
  return ms > 0 ? `in ${span(ms)}` : "now";
}

/** "0.25s", "3m": from one time to another, or to now. */
export function elapsed(from: string, to: string | null, now: number = Date.now()): string {
  const until = to === null ? now : Date.parse(to);
  const seconds = Math.max(0, until - Date.parse(from)) / 1000;
  return seconds < 10 ? `${seconds.toFixed(2)}s` : age(from, until);
}

const SIZES = ["B", "kB", "MB", "GB", "TB"];

export function size(bytes: number): string {
  let value = bytes;
  let unit = 0;
  for (; value >= 1000 && unit < SIZES.length - 1; unit++) value /= 1000;
  return `${unit === 0 ? value : value.toFixed(1)} ${SIZES[unit]}`;
}
