import type { MountDrive } from "@holdfast/sdk";
import { InvalidArgumentError } from "commander";

/** Parsers of option values. */

const DURATIONS: Record<string, number> = { ms: 1, s: 1_000, m: 60_000, h: 3_600_000 };
const SIZES_MB: Record<string, number> = { m: 1, mb: 1, g: 1024, gb: 1024 };

/** Parses "500ms", "30s", "5m" or "2h" to milliseconds; a number without a unit is in seconds. */
export function duration(text: string): number {
  const [, number = "", unit = "s"] = /^(\d+(?:\.\d+)?)(ms|s|m|h)?$/.exec(text) ?? [];
  const ms = Math.round(Number(number) * (DURATIONS[unit] ?? 0));
  if (ms < 1)
    throw new InvalidArgumentError(
      "Use a duration of at least 1ms with a unit of ms, s, m or h, such as 500ms, 30s or 2h.",
    );
  return ms;
}

/** Parses a duration, or "none". */
export const durationOrNone = (text: string): number | "none" => (text === "none" ? text : duration(text));

const DAY_MS = 86_400_000;

/**
 * Parses a time before now, such as "10m", "2h" or "3d", or a date or time. A time without an offset is in the local
 * time zone.
 */
export function moment(text: string): Date {
  const [, number, unit = ""] = /^(\d+)(s|m|h|d)$/.exec(text) ?? [];
  if (number !== undefined) return new Date(Date.now() - Number(number) * (DURATIONS[unit] ?? DAY_MS));
  const at = /^\d{4}-\d{2}-\d{2}([T ]|$)/.test(text) ? Date.parse(text) : Number.NaN;
  if (Number.isNaN(at))
    throw new InvalidArgumentError("Use a time such as 10m, 2h or 3d ago, or 2026-01-31T12:00:00Z.");
  return new Date(at);
}

/** Parses "512m" or "2g" to megabytes; a number without a unit is in megabytes. */
export function megabytes(text: string): number {
  const [, number = "", unit = "m"] = /^(\d+(?:\.\d+)?)(m|mb|g|gb)?$/i.exec(text) ?? [];
  const mb = Math.round(Number(number) * (SIZES_MB[unit.toLowerCase()] ?? 0));
  if (mb < 1)
    throw new InvalidArgumentError("Use a size of at least 1m with a unit of m or g, such as 512m or 2g.");
  return mb;
}

export function cores(text: string): number {
  const cpus = Number(text);
  if (text === "" || !(cpus > 0)) throw new InvalidArgumentError("Use a number of cores such as 0.5 or 2.");
  return cpus;
}

export function count(text: string): number {
  if (!/^[1-9]\d{0,8}$/.test(text)) throw new InvalidArgumentError("Use a whole number from 1 to 999999999.");
  return Number(text);
}

export function port(text: string): number {
  const number = /^[1-9]\d{0,4}$/.test(text) ? Number(text) : 0;
  if (number < 1 || number > 65_535) throw new InvalidArgumentError("Use a port from 1 to 65535.");
  return number;
}

/** Collects the values of a repeatable option. */
export const several = (text: string, before: readonly string[] = []): string[] => [...before, text];

/** Collects "KEY=VALUE" options; "KEY" alone copies the value from the local environment. */
export function variable(text: string, before: Record<string, string> = {}): Record<string, string> {
  const at = text.indexOf("=");
  if (at > 0) return { ...before, [text.slice(0, at)]: text.slice(at + 1) };
  const value = process.env[text];
  if (at === 0 || text === "")
    throw new InvalidArgumentError("Use KEY=VALUE, or KEY to copy the local value.");
  return value === undefined ? before : { ...before, [text]: value };
}

export function label(text: string, before: Record<string, string> = {}): Record<string, string> {
  const at = text.indexOf("=");
  if (at < 1) throw new InvalidArgumentError("Use KEY=VALUE.");
  return { ...before, [text.slice(0, at)]: text.slice(at + 1) };
}

/** Collects "DRIVE:PATH" or "DRIVE/DIRECTORY:PATH" options; a ":ro" suffix mounts read-only. */
export function mount(text: string, before: readonly MountDrive[] = []): MountDrive[] {
  const [, drive, subpath, path, ro] = /^([^:/]+)(\/[^:]*)?:(\/.*?)(:ro)?$/s.exec(text) ?? [];
  if (drive === undefined || path === undefined)
    throw new InvalidArgumentError("Use DRIVE:PATH, or DRIVE:PATH:ro to mount read-only.");
  const readOnly = ro === undefined ? undefined : true;
  return [...before, { drive, path, ...given({ subpath, readOnly }) }];
}

/** Removes the optional "--" separator before the command. */
export const commandOf = (words: readonly string[]): string[] => [
  ...(words[0] === "--" ? words.slice(1) : words),
];

type Given<Options extends object> = { [Key in keyof Options]: Exclude<Options[Key], undefined> };

/** Drops options that were not given. */
export function given<Options extends object>(options: Options): Given<Options> {
  return Object.fromEntries(Object.entries(options).filter(([, value]) => value !== undefined)) as never;
}

/** Drops options that were not given; returns undefined if none was. */
export function givenAny<Options extends object>(options: Options): Given<Options> | undefined {
  const those = given(options);
  return Object.keys(those).length === 0 ? undefined : those;
}
