const UNITS: Readonly<Record<string, number>> = {
  s: 1_000,
  m: 60_000,
  h: 3_600_000,
  d: 86_400_000,
  w: 604_800_000,
};

/** Parses `30m`, `24h` or `7d` to milliseconds; null if malformed. */
export function durationMs(text: string): number | null {
  const [, count, unit] = /^(\d{1,9})([smhdw])$/.exec(text.trim()) ?? [];
  const ms = UNITS[unit ?? ""];
  return ms === undefined ? null : Number(count) * ms;
}
