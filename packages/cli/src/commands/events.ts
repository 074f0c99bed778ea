import { setTimeout as sleep } from "node:timers/promises";
import type { Event, Page } from "@holdfast/sdk";
import type { Command } from "commander";
import { type Context, everything } from "../context.ts";
import { usage } from "../failure.ts";
import { asJson, printable } from "../table.ts";

const POLL_MS = 1_000;

type ListEvents = (page: { limit: number; cursor: string | undefined }) => Promise<Page<Event>>;

interface Options {
  drive?: string;
  follow?: boolean;
  json?: boolean;
}

export function registerEvents(program: Command, context: Context): void {
  program
    .command("events")
    .summary("show what happened, oldest first")
    .argument("[sandbox]", "name or id (default: everything)")
    .option("--drive <drive>", "what happened to this drive; by its id also when it is gone")
    .option("-f, --follow", "go on with what happens next")
    .option("--json", "print them as JSON, one a line with --follow")
    .addHelpText(
      "after",
      "\nExamples:\n  holdfast events box\n  holdfast events -f\n  holdfast events --json box\n  holdfast events --drive data",
    )
    .action(async (name: string | undefined, options: Options) => {
      const { signal } = context.interruption;
      const list = await listOf(context, name, options.drive);
      if (options.follow) return followEvents(list, options.json ?? false, signal);
      const events = await everything(list);
      process.stdout.write(options.json ? asJson(events) : events.map(line).join(""));
    });
}

async function listOf(
  context: Context,
  name: string | undefined,
  drive: string | undefined,
): Promise<ListEvents> {
  const { signal } = context.interruption;
  const client = context.client();
  if (name === undefined) return (page) => client.events({ ...page, drive, signal });
  if (drive !== undefined) throw usage("name a sandbox, or a drive, and not both");
  const box = await client.sandboxes.get(name, { signal });
  return (page) => box.events({ ...page, signal });
}

/** Asks again for the last page, where new events appear, and shows those it has not shown. */
async function followEvents(list: ListEvents, json: boolean, signal: AbortSignal): Promise<void> {
  let cursor: string | undefined;
  let shown = -1;
  while (!signal.aborted) {
    const { items, nextCursor } = await list({ limit: 1000, cursor });
    for (const event of items.filter(({ seq }) => seq > shown)) {
      process.stdout.write(json ? `${JSON.stringify(event)}\n` : line(event));
      shown = event.seq;
    }
    if (nextCursor !== null) cursor = nextCursor;
    else await sleep(POLL_MS, undefined, { signal }).catch(() => {});
  }
}

function line({ at, type, message, sandboxId, execId, driveId }: Event): string {
  const about = [sandboxId, execId, driveId].filter((id) => id !== null).join(" ");
  return `${at}  ${type.padEnd(20)}  ${printable(message)}${about === "" ? "" : `  [${printable(about)}]`}\n`;
}
