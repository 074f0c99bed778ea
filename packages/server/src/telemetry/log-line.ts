import { LOG_LINE_LEVELS, type LogLine } from "@holdfast/contract";

type Level = LogLine["level"];

/** What lines are asked for. */
export interface LogFilter {
  sandboxId?: string | undefined;
  execId?: string | undefined;
  driveId?: string | undefined;
  requestId?: string | undefined;
  /** This one and those that are worse. */
  level?: Level | undefined;
  /** In what the line says, in any case. */
  text?: string | undefined;
  since?: number | undefined;
  until?: number | undefined;
}

/** Pino's own numbers. */
const levelOf = (level: unknown): Level => {
  const number = Number(level);
  return number >= 50 ? "error" : number >= 40 ? "warn" : number >= 30 ? "info" : "debug";
};

const textOf = (...values: readonly unknown[]): string | null =>
  values.find((value): value is string => typeof value === "string") ?? null;

/** A line as it is answered; null for what is none. Different parts call the same thing by two names. */
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

/** Pino puts it before all that anybody else has a say in. */
export function timeIn(line: string): number | null {
  const [, time] = /^\{"level":\d+,"time":(\d+)/.exec(line) ?? [];
  return time === undefined ? null : Number(time);
}

/** Whether a line may be one that is asked for, as cheaply as that can be told: most are not, and are not taken apart. */
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
    (text === undefined || saysIt(line, text.toLowerCase()))
  );
}

const rank = (level: Level): number => LOG_LINE_LEVELS.indexOf(level);

const saysIt = ({ message, fields }: LogLine, text: string): boolean =>
  message.toLowerCase().includes(text) || JSON.stringify(fields).toLowerCase().includes(text);
