import type { LogFilter, LogLevel, LogLine } from "@holdfast/sdk";
import { type Command, Option } from "commander";
import type { Context } from "../context.ts";
import { sandboxIdOf } from "../lookup.ts";
import { asJson, jsonText, printable } from "../table.ts";
import { count, moment } from "../values.ts";

const LINES = 100;
/** A question looks through a part of the log; this is far more than there are. */
const QUESTIONS_AT_MOST = 1_000;

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
    .option("--sandbox <sandbox>", "lines about this one; by its id also when it is gone")
    .option("--drive <drive>", "lines about this one; by its id also when it is gone")
    .option("--exec <exec>", "lines about this one")
    .option("--request <id>", "lines about this request, as named in an error")
    .addOption(
      new Option("--level <level>", "this one and those that are worse").choices([
        "debug",
        "info",
        "warn",
        "error",
      ]),
    )
    .option("--text <text>", "lines that say this, in any case")
    .option("--since <time>", "not before this, such as 10m (ago) or 2026-01-31T12:00:00Z", moment)
    .option("--until <time>", "before this", moment)
    .addOption(
      new Option("-n, --last <number>", "the last so many of them").argParser(count).default(LINES, "100"),
    )
    .option("--json", "print them as JSON")
    .description(
      "Shows the last lines of the server's own log that match all that is given, oldest first. What commands wrote is shown\n" +
        "by 'holdfast logs', and what happened to sandboxes by 'holdfast events'.",
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
      process.stdout.write(json ? asJson(lines) : lines.map(textOf).join(""));
    });
}

/** Oldest first. */
async function linesOf(context: Context, filter: LogFilter, last: number): Promise<LogLine[]> {
  const { signal } = context.interruption;
  const found: LogLine[] = [];
  let cursor: string | undefined;
  for (let asked = 0; asked < QUESTIONS_AT_MOST && found.length < last; asked++) {
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
