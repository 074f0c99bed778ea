import { LOG_LINE_LEVELS, type LogLine } from "@holdfast/contract";
import type { LogFilter } from "../ports/telemetry.ts";

type Level = LogLine["level"];

/** Converts pino's level number to the name of the level. */
const levelOf = (level: unknown): Level => {
  const number = Number(level);
  return number >= 50 ? "error" : number >= 40 ? "warn" : number >= 30 ? "info" : "debug";
};

const textOf = (...values: readonly unknown[]): string | null =>
  values.find((value): value is string => typeof value === "string") ?? null;

/**
 * Converts a line of the log to a line of the response. Returns null if the text is not a log line. Some fields have
 * two names, such as `sandbox` and `sandboxId`, because components differ; both names are read.
 */
export function readLine(text: string): LogLine | null {
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch {
    return null;
  }
  if (typeof value !== "object" || value === null) return null;
  const { time, level, msg, sandbox, sandboxId, exec, execId, drive, driveId, requestId, ...fields } =
    value as Record<string, unknown>;
  if (typeof time !== "number" || !Number.isFinite(time)) return null;
  return {
    at: new Date(time).toISOString(),
    level: levelOf(level),
    message: textOf(msg) ?? "",
    sandboxId: textOf(sandbox, sandboxId),
    execId: textOf(exec, execId),
    driveId: textOf(drive, driveId),
    requestId: textOf(requestId),
    fields,
  };
}

/**
 * Returns the time of a line; null if the line has none. Pino writes level and time first, so the time is read only at
 * that position, where no other field can imitate it.
 */
export function timeIn(line: string): number | null {
  const [, time] = /^\{"level":\d+,"time":(\d+)/.exec(line) ?? [];
  return time === undefined ? null : Number(time);
}

/** Checks quickly whether a line can match the filter, so that the many lines that can't are not parsed. */
export function mayMatch(line: string, filter: LogFilter): boolean {
  const { sandboxId, execId, driveId, requestId, since, until } = filter;
  const ids = [sandboxId, execId, driveId, requestId];
  if (!ids.every((id) => id === undefined || line.includes(id))) return false;
  const time = since === undefined && until === undefined ? null : timeIn(line);
  return time === null || (time >= (since ?? 0) && time < (until ?? Number.POSITIVE_INFINITY));
}

export function matches(line: LogLine, filter: LogFilter): boolean {
  const { sandboxId, execId, driveId, requestId, level, text, since, until } = filter;
  const at = Date.parse(line.at);
  return (
    (sandboxId === undefined || line.sandboxId === sandboxId) &&
    (execId === undefined || line.execId === execId) &&
    (driveId === undefined || line.driveId === driveId) &&
    (requestId === undefined || line.requestId === requestId) &&
    (level === undefined || rank(line.level) >= rank(level)) &&
    (since === undefined || at >= since) &&
    (until === undefined || at < until) &&
    (text === undefined || containsText(line, text.toLowerCase()))
  );
}

const rank = (level: Level): number => LOG_LINE_LEVELS.indexOf(level);

const containsText = ({ message, fields }: LogLine, text: string): boolean =>
  message.toLowerCase().includes(text) || JSON.stringify(fields).toLowerCase().includes(text);
