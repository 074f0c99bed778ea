import type { Log } from "@holdfast/engine";
import { pino } from "pino";
import { terminalLine } from "./terminal-line.ts";

export const LOG_LEVELS = ["debug", "info", "warn", "error", "silent"] as const;
export type LogLevel = (typeof LOG_LEVELS)[number];

export const LOG_FORMATS = ["json", "text"] as const;
export type LogFormat = (typeof LOG_FORMATS)[number];

/** Fields that are redacted, in case a secret is logged by mistake. No code logs secrets on purpose. */
const REDACTED = ["authorization", "*.authorization", "key", "secret", "*.secret"];

interface LoggerOptions {
  /** Minimum level of lines on stderr. */
  level: LogLevel;
  /** Format of lines on stderr; `text` is for people. Default: `json`. */
  format?: LogFormat;
  /**
   * Ids of sandboxes that the self-test breaks on purpose. In the format `text`, lines about them are left out, because
   * the user sees the result of the self-test.
   */
  unmentioned?: ReadonlySet<string>;
  fields?: Record<string, unknown>;
  /** The stored log. It receives lines of level info and above, and also debug lines if stderr does. */
  serverLog?: { write(line: string): void };
}

/**
 * Creates the logger: one line per decision, on stderr and as JSON in the server log. Stdout is for text that a person
 * should read.
 */
export function createLogger({
  level,
  format = "json",
  unmentioned,
  fields = {},
  serverLog,
}: LoggerOptions): Log {
  const bytes = pino.destination({ dest: 2, sync: true });
  const stderr = format === "json" ? bytes : forPeople(bytes, unmentioned ?? new Set());
  const settings = { base: fields, redact: REDACTED };
  if (serverLog === undefined) return pino({ ...settings, level }, stderr);
  const kept = level === "debug" ? "debug" : "info";
  const streams = [
    { level: kept, stream: serverLog },
    ...(level === "silent" ? [] : [{ level, stream: stderr }]),
  ];
  return pino({ ...settings, level: kept }, pino.multistream(streams));
}

function forPeople(out: { write(text: string): unknown }, unmentioned: ReadonlySet<string>) {
  const isColored = process.stderr.isTTY === true && !process.env.NO_COLOR;
  return {
    write(line: string): void {
      for (const id of unmentioned) if (line.includes(id)) return;
      out.write(terminalLine(line, isColored));
    },
  };
}
