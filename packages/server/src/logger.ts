import type { Log } from "@holdfast/engine";
import { pino } from "pino";

export const LOG_LEVELS = ["debug", "info", "warn", "error", "silent"] as const;
export type LogLevel = (typeof LOG_LEVELS)[number];

/** Only what is never a secret is logged; these are taken out all the same. */
const REDACTED = ["authorization", "*.authorization", "key", "secret", "*.secret"];

/** One JSON line per decision, on stderr; stdout is for what a person should read. */
export function createLogger(options: { level: LogLevel; fields?: Record<string, unknown> }): Log {
  const settings = { level: options.level, base: options.fields ?? {}, redact: REDACTED };
  return pino(settings, pino.destination({ dest: 2, sync: true }));
}
