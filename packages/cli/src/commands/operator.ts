import { setTimeout as sleep } from "node:timers/promises";
import type { Event, Page } from "@holdfast/sdk";
import type { Command } from "commander";
import { type Context, everything } from "../context.ts";
import { asJson, printable, table } from "../table.ts";

const POLL_MS = 1_000;

export function registerOperator(program: Command, context: Context): void {
  registerEvents(program, context);
  registerStats(program, context);
}

type ListEvents = (page: { limit: number; cursor: string | undefined }) => Promise<Page<Event>>;

function registerEvents(program: Command, context: Context): void {
  program
    .command("events")
    .summary("show what happened, oldest first")
    .argument("[sandbox]", "name or id (default: everything)")
    .option("-f, --follow", "go on with what happens next")
    .option("--json", "print them as JSON, one a line with --follow")
    .addHelpText(
      "after",
      "\nExamples:\n  holdfast events box\n  holdfast events -f\n  holdfast events --json box",
    )
    .action(async (name: string | undefined, options: { follow?: boolean; json?: boolean }) => {
      const { signal } = context.interruption;
      const client = context.client();
      const source = name === undefined ? client : await client.sandboxes.get(name, { signal });
      const list: ListEvents = (page) => source.events({ ...page, signal });
      if (options.follow) return followEvents(list, options.json ?? false, signal);
      const events = await everything(list);
      process.stdout.write(options.json ? asJson(events) : events.map(line).join(""));
    });
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

function line({ at, type, message, sandboxId, execId }: Event): string {
  const about = [sandboxId, execId].filter((id) => id !== null).join(" ");
  return `${at}  ${type.padEnd(20)}  ${printable(message)}${about === "" ? "" : `  [${printable(about)}]`}\n`;
}

function registerStats(program: Command, context: Context): void {
  program
    .command("stats")
    .summary("show exact counts")
    .option("--json", "print them as JSON")
    .addHelpText("after", "\nExamples:\n  holdfast stats\n  holdfast stats --json")
    .action(async ({ json }: { json?: boolean }) => {
      const stats = await context.client().stats({ signal: context.interruption.signal });
      const rows: [string, unknown][] = [
        ...Object.entries(stats.sandboxes).filter(([status, count]) => count > 0 || status === "ready"),
        ...Object.entries(stats.totals).map(([name, count]): [string, unknown] => [`total ${name}`, count]),
        ["execs running", stats.execsRunning],
        ["links up", stats.links.up],
        ["links down", stats.links.down],
        ["orphans", stats.orphans],
        ["last observation", stats.lastObservationAt ?? "never"],
      ];
      const text = table(
        ["WHAT", "COUNT"],
        rows.map(([what, count]) => [what, String(count)]),
      );
      process.stdout.write(json ? asJson(stats) : text);
    });
}
