import type { Event, EventFilter, EventSubject, EventType } from "@holdfast/sdk";
import type { Command } from "commander";
import { count, moment } from "../../arguments/values.ts";
import type { Context } from "../../context.ts";
import { everything } from "../../context.ts";
import { usage } from "../../failure.ts";
import { sandboxIdOf } from "../../lookup.ts";
import { print, printError, writeTo } from "../../output/streams.ts";
import { asJson, jsonText, printable } from "../../output/table.ts";

interface Options {
  sandbox?: string;
  drive?: string;
  exec?: string;
  type?: EventType[];
  since?: Date;
  until?: Date;
  last?: number;
  follow?: boolean;
  json?: boolean;
}

export function registerEvents(program: Command, context: Context): void {
  program
    .command("events")
    .summary("show events, oldest first")
    .argument("[sandbox]", "name or id (default: all events)")
    .option("--sandbox <sandbox>", "same as the argument; a deleted sandbox must be given by id")
    .option("--drive <drive>", "only events of this drive; a deleted drive must be given by id")
    .option("--exec <exec>", "only events of this exec")
    .option("--type <types...>", "only these types, such as sandbox.failed or exec.ended")
    .option(
      "--since <time>",
      "only events since this time, such as 10m (ago) or 2026-01-31T12:00:00Z",
      moment,
    )
    .option("--until <time>", "only events before this time; with --follow, stop then", moment)
    .option("-n, --last <number>", "only the last events, up to this number", count)
    .option("-f, --follow", "print new events as they happen, from now or from --since")
    .option("--json", "print events as JSON; with --follow, one per line")
    .description(
      "Shows the events of sandboxes, execs and drives. With -f, follows until Ctrl-C, across lost connections and server " +
        "restarts, and prints each event once.",
    )
    .addHelpText(
      "after",
      `
Examples:
  holdfast events box
  holdfast events -f
  holdfast events -f --since 10m --type sandbox.degraded sandbox.healed sandbox.failed
  holdfast events --json --last 50 box
  holdfast events --drive data`,
    )
    .action(async (name: string | undefined, options: Options) => {
      const filter = await filterOf(context, name, options);
      if (options.follow) await follow(context, filter, options);
      else await list(context, filter, options);
    });
}

type Filter = EventFilter & EventSubject;

async function filterOf(context: Context, name: string | undefined, options: Options): Promise<Filter> {
  if (name !== undefined && options.sandbox !== undefined)
    throw usage("the sandbox is given twice", "Use either the argument or --sandbox.");
  const ref = name ?? options.sandbox;
  const sandbox = ref === undefined ? undefined : await sandboxIdOf(context, ref);
  const { drive, exec, type: types, since, until } = options;
  return { sandbox, drive, exec, types, since, until, signal: context.interruption.signal };
}

async function list(context: Context, filter: Filter, { last, json }: Options): Promise<void> {
  const { events } = context.client();
  const found =
    last === undefined
      ? await everything((page) => events.list({ ...filter, ...page }))
      : await lastOf(context, filter, last);
  print(json ? asJson(found) : found.map(line).join(""));
}

/** Returns the newest `last` events, oldest first. */
async function lastOf(context: Context, filter: Filter, last: number): Promise<Event[]> {
  const { events } = context.client();
  const found: Event[] = [];
  let cursor: string | undefined;
  while (found.length < last) {
    const limit = Math.min(1_000, last - found.length);
    const { items, nextCursor } = await events.list({ ...filter, order: "newest", limit, cursor });
    found.push(...items);
    if (nextCursor === null) break;
    cursor = nextCursor;
  }
  return found.reverse();
}

async function follow(context: Context, filter: Filter, { last, json }: Options): Promise<void> {
  const { signal } = context.interruption;
  const show = (event: Event) => writeTo("stdout", json ? `${jsonText(event)}\n` : line(event), signal);
  let cursor: string | undefined;
  if (last !== undefined) {
    // The position from which events are followed is determined before the last events are shown, so that no event is
    // missed or shown twice.
    const [newest] = await lastOf(context, { signal }, 1);
    cursor = newest === undefined ? "0" : String(newest.seq);
    for (const event of await lastOf(context, filter, last))
      if (event.seq <= Number(cursor)) await show(event);
  }
  const missing = (text: string) => printError(`holdfast: ${text}\n`);
  const onConnection = (state: "open" | "lost") => {
    if (process.stderr.isTTY && state === "lost") missing("connection lost; reconnecting");
  };
  for await (const event of context.client().events.follow({ ...filter, cursor, onConnection }))
    await show(event);
}

function line({ at, type, message, sandboxId, execId, driveId }: Event): string {
  const about = [sandboxId, execId, driveId].filter((id) => id !== null).join(" ");
  return `${at}  ${type.padEnd(20)}  ${printable(message)}${about === "" ? "" : `  [${printable(about)}]`}\n`;
}
