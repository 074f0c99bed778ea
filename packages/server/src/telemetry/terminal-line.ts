/** Formats log lines as text for a person at a terminal: time, level, message and fields. */

const LEVELS: readonly (readonly [least: number, name: string, color: string])[] = [
  [50, "error", "\x1b[31m"],
  [40, "warn", "\x1b[33m"],
  [30, "info", "\x1b[36m"],
  [0, "debug", "\x1b[2m"],
];
const [RESET, DIM] = ["\x1b[0m", "\x1b[2m"];

/** Maximum length of a field's value. */
const VALUE_MAX = 200;

/** Characters that move the cursor or reorder text: fields may quote what a sandbox wrote. */
// biome-ignore lint/suspicious/noControlCharactersInRegex: these are the characters to replace
const UNPRINTABLE = /[\u0000-\u001f\u007f-\u009f\u2028-\u202e\u2066-\u2069]/g;
const printable = (text: string): string => text.replace(UNPRINTABLE, "\ufffd");

/** Fields that are not shown, because every line has them or a person does not need them. */
const LEFT_OUT: ReadonlySet<string> = new Set(["level", "time", "msg", "pid", "hostname", "part"]);

/** Returns the readable form of one JSON line. Returns a line that is not JSON as it is, without control characters. */
export function terminalLine(json: string, isColored: boolean): string {
  const line = parse(json);
  if (line === null) return `${printable(json.trimEnd())}\n`;
  const number = Number(line.level);
  const [, level, color] = LEVELS.find(([least]) => number >= least) ?? ["", "debug", DIM];
  const time = new Date(Number(line.time)).toTimeString().slice(0, 8);
  const fields = Object.entries(line)
    .filter(([name]) => !LEFT_OUT.has(name))
    .map(([name, value]) => `${name}=${textOf(value)}`)
    .join(" ");
  const message = printable(String(line.msg ?? ""));
  if (!isColored) return `${time} ${level.padEnd(5)} ${message}${fields === "" ? "" : `  ${fields}`}\n`;
  const tail = fields === "" ? "" : `  ${DIM}${fields}${RESET}`;
  return `${DIM}${time}${RESET} ${color}${level.padEnd(5)}${RESET} ${message}${tail}\n`;
}

function parse(json: string): Record<string, unknown> | null {
  try {
    const value: unknown = JSON.parse(json);
    return typeof value === "object" && value !== null ? (value as Record<string, unknown>) : null;
  } catch {
    return null;
  }
}

/**
 * Returns the text of a field's value. For an error, this is its message and the messages of its causes, outermost
 * first.
 */
function textOf(value: unknown): string {
  const messages = messagesOf(value);
  const text =
    messages.length > 0 ? messages.join(": ") : typeof value === "string" ? value : JSON.stringify(value);
  const short = text.length > VALUE_MAX ? `${text.slice(0, VALUE_MAX)}…` : text;
  return printable(/\s/.test(short) && typeof value !== "object" ? JSON.stringify(short) : short);
}

const CAUSES_MAX = 5;

function messagesOf(value: unknown, depth = 0): string[] {
  if (typeof value !== "object" || value === null || depth >= CAUSES_MAX) return [];
  const { message, cause } = value as { message?: unknown; cause?: unknown };
  return typeof message === "string" ? [message, ...messagesOf(cause, depth + 1)] : [];
}
