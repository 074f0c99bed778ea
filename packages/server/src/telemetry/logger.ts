import type { Log } from "@holdfast/engine";
import { pino } from "pino";

export const LOG_LEVELS = ["debug", "info", "warn", "error", "silent"] as const;
export type LogLevel = (typeof LOG_LEVELS)[number];

/** Only what is never a secret is logged; these are taken out all the same. */
const REDACTED = ["authorization", "*.authorization", "key", "secret", "*.secret"];

interface LoggerOptions {
  /** Of what goes to stderr. */
  level: LogLevel;
  fields?: Record<string, unknown>;
  /** Where lines are kept. It is told of level info at least, whatever stderr is told. */
  book?: { write(line: string): void };
}

/** One JSON line per decision, on stderr and in the book; stdout is for what a person should read. */
export function createLogger({ level, fields = {}, book }: LoggerOptions): Log {
  const stderr = pino.destination({ dest: 2, sync: true });
  const settings = { base: fields, redact: REDACTED };
  if (book === undefined) return pino({ ...settings, level }, stderr);
  const kept = level === "debug" ? "debug" : "info";
  const streams = [{ level: kept, stream: book }, ...(level === "silent" ? [] : [{ level, stream: stderr }])];
  return pino({ ...settings, level: kept }, pino.multistream(streams));
}
