import type { Event, EventFilter, EventSubject, EventType } from "@holdfast/sdk";
import type { Command } from "commander";
import type { Context } from "../context.ts";
import { everything } from "../context.ts";
import { usage } from "../failure.ts";
import { sandboxIdOf } from "../lookup.ts";
import { writeTo } from "../pipe.ts";
import { asJson, jsonText, printable } from "../table.ts";
import { count, moment } from "../values.ts";

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
    .summary("show what happened, oldest first")
    .argument("[sandbox]", "name or id (default: everything)")
    .option("--sandbox <sandbox>", "the same as the argument; by its id also when it is gone")
    .option("--drive <drive>", "what happened to this drive; by its id also when it is gone")
    .option("--exec <exec>", "what happened to this exec")
    .option("--type <types...>", "only these, such as sandbox.failed or exec.ended")
    .option("--since <time>", "not before this, such as 10m (ago) or 2026-01-31T12:00:00Z", moment)
    .option("--until <time>", "before this; with --follow, end then", moment)
    .option("-n, --last <number>", "only the last so many", count)
    .option("-f, --follow", "go on with what happens, from now or --since on")
    .option("--json", "print them as JSON, one a line with --follow")
    .description(
      "Shows what happened to sandboxes, execs and drives. With -f it goes on until Ctrl-C, over lost connections and servers\n" +
        "that restart, and tells each event once.",
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
    throw usage("name the sandbox once", "The argument and --sandbox mean the same.");
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
  process.stdout.write(json ? asJson(found) : found.map(line).join(""));
}

/** The newest, oldest first. */
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
    // What happens from here on is followed, and what came before it is shown first.
    const [newest] = await lastOf(context, { signal }, 1);
    cursor = newest === undefined ? "0" : String(newest.seq);
    for (const event of await lastOf(context, filter, last))
      if (event.seq <= Number(cursor)) await show(event);
  }
  const missing = (text: string) => process.stderr.write(`holdfast: ${text}\n`);
  const onConnection = (state: "open" | "lost") => {
    if (process.stderr.isTTY && state === "lost") missing("the connection was lost; trying again");
  };
  for await (const event of context.client().events.follow({ ...filter, cursor, onConnection }))
    await show(event);
}

function line({ at, type, message, sandboxId, execId, driveId }: Event): string {
  const about = [sandboxId, execId, driveId].filter((id) => id !== null).join(" ");
  return `${at}  ${type.padEnd(20)}  ${printable(message)}${about === "" ? "" : `  [${printable(about)}]`}\n`;
}
