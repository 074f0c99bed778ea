import type { LogFilter, LogLevel, LogLine } from "@holdfast/sdk";
import { type Command, Option } from "commander";
import { count, moment } from "../../arguments/values.ts";
import type { Context } from "../../context.ts";
import { sandboxIdOf } from "../../lookup.ts";
import { print } from "../../output/streams.ts";
import { asJson, jsonText, printable } from "../../output/table.ts";

const LINES = 100;
/**
 * Maximum number of requests for the log. Each request covers one part of the log, and the log has far fewer parts than
 * this.
 */
const QUERIES_MAX = 1_000;

interface Options {
  sandbox?: string;
  drive?: string;
  exec?: string;
  request?: string;
  level?: LogLevel;
  text?: string;
  since?: Date;
  until?: Date;
  last: number;
  json?: boolean;
}

export function registerServerLogs(program: Command, context: Context): void {
  program
    .command("server-logs")
    .summary("show the server's own log")
    .option("--sandbox <sandbox>", "only lines about this sandbox; a deleted sandbox must be given by id")
    .option("--drive <drive>", "only lines about this drive; a deleted drive must be given by id")
    .option("--exec <exec>", "only lines about this exec")
    .option("--request <id>", "only lines about this request; errors contain the request id")
    .addOption(
      new Option("--level <level>", "only lines of this level or more severe").choices([
        "debug",
        "info",
        "warn",
        "error",
      ]),
    )
    .option("--text <text>", "only lines that contain this text, ignoring case")
    .option("--since <time>", "only lines since this time, such as 10m (ago) or 2026-01-31T12:00:00Z", moment)
    .option("--until <time>", "only lines before this time", moment)
    .addOption(
      new Option("-n, --last <number>", "maximum number of lines, counted from the end")
        .argParser(count)
        .default(LINES, "100"),
    )
    .option("--json", "print the lines as JSON")
    .description(
      "Shows the last lines of the server's own log that match all given filters, oldest first. 'holdfast logs' shows the " +
        "output of commands, 'holdfast events' the events of sandboxes.",
    )
    .addHelpText(
      "after",
      `
Examples:
  holdfast server-logs --level warn --since 1h
  holdfast server-logs --sandbox box
  holdfast server-logs --request req_3f9a000001 --json`,
    )
    .action(async ({ sandbox, last, json, ...options }: Options) => {
      const sandboxId = sandbox === undefined ? undefined : await sandboxIdOf(context, sandbox);
      const lines = await linesOf(context, { ...options, sandbox: sandboxId }, last);
      print(json ? asJson(lines) : lines.map(textOf).join(""));
    });
}

/** Returns the last matching lines, oldest first. */
async function linesOf(context: Context, filter: LogFilter, last: number): Promise<LogLine[]> {
  const { signal } = context.interruption;
  const found: LogLine[] = [];
  let cursor: string | undefined;
  for (let asked = 0; asked < QUERIES_MAX && found.length < last; asked++) {
    const limit = Math.min(1_000, last - found.length);
    const { items, nextCursor } = await context.client().logs({ ...filter, limit, cursor, signal });
    found.push(...items);
    if (nextCursor === null) break;
    cursor = nextCursor;
  }
  return found.reverse();
}

function textOf({ at, level, message, fields, ...about }: LogLine): string {
  const { sandboxId: sandbox, execId: exec, driveId: drive, requestId: request } = about;
  const facts = Object.entries({ sandbox, exec, drive, request, ...fields })
    .filter(([, value]) => value !== null && value !== undefined)
    .map(([key, value]) => `${key}=${typeof value === "string" ? value : jsonText(value)}`);
  return `${at}  ${level.padEnd(5)}  ${printable([message, ...facts].join("  "))}\n`;
}
