import { setTimeout as sleep } from "node:timers/promises";
import { HoldfastError, type UsageSummary } from "@holdfast/sdk";
import { type Command, Option } from "commander";
import type { Context } from "../context.ts";
import { Interrupted } from "../interrupt.ts";
import { LiveScreen } from "../live-screen.ts";
import { asJson, printable } from "../table.ts";
import { inOrder, tallyOf, USAGE_ORDERS, type UsageOrder, usageTable } from "../usage-table.ts";
import { duration } from "../values.ts";

const EVERY_MS = 2_000;

interface Options {
  sort: UsageOrder;
  every: number;
  once?: boolean;
  json?: boolean;
}

export function registerTop(program: Command, context: Context): void {
  program
    .command("top")
    .summary("show what all sandboxes use, live")
    .addOption(new Option("--sort <order>", "what comes first").choices(USAGE_ORDERS).default("cpu"))
    .addOption(new Option("--every <time>", "how often to ask").argParser(duration).default(EVERY_MS, "2s"))
    .option("--once", "show it once, as when piped")
    .option("--json", "print it once, as JSON")
    .description(
      "Shows a table of all sandboxes that is kept up to date, the busiest first; q ends it. Figures are those of the server's\n" +
        "last look at all of them, every 5 s: asking costs the sandboxes nothing.",
    )
    .addHelpText(
      "after",
      "\nExamples:\n  holdfast top\n  holdfast top --sort memory --every 5s\n  holdfast top --once | head",
    )
    .action(async (options: Options) => {
      const isLive = process.stdin.isTTY && process.stdout.isTTY && !options.once && !options.json;
      if (isLive) return live(context, options);
      const usage = inOrder(await ask(context, context.interruption.signal), options.sort);
      process.stdout.write(options.json ? asJson(usage) : usageTable(usage));
    });
}

const ask = (context: Context, signal: AbortSignal): Promise<UsageSummary[]> =>
  context.client().sandboxes.usage({ signal });

/** What is known, and what went wrong since. */
interface Known {
  usage: UsageSummary[];
  at: number | null;
  trouble: string;
}

/** A server that is away is waited for, with what was last known of it: someone is looking. */
async function live(context: Context, { sort, every }: Options): Promise<void> {
  const over = new AbortController();
  const signal = AbortSignal.any([context.interruption.signal, over.signal]);
  const known: Known = { usage: [], at: null, trouble: "" };
  using screen = new LiveScreen({
    draw: (rows) => page(known, sort, rows),
    onKey: (key) => {
      if (key === "q" || key === "Q") over.abort();
      // A terminal in raw mode makes no signal of it.
      if (key === "\x03") context.interruption.interrupt(new Interrupted("SIGINT"));
    },
  });
  screen.show();
  while (!over.signal.aborted) {
    try {
      known.usage = inOrder(await ask(context, signal), sort);
      known.at = Date.now();
      known.trouble = "";
    } catch (error) {
      if (over.signal.aborted) return;
      if (!(error instanceof HoldfastError) || !error.retryable) throw error;
      known.trouble = error.message;
    }
    screen.show();
    await sleep(every, undefined, { signal }).catch(() => {});
    context.interruption.signal.throwIfAborted();
  }
}

function page({ usage, at, trouble }: Known, sort: UsageOrder, rows: number): string[] {
  const time = at === null ? "asking" : new Date(at).toLocaleTimeString();
  const head = `${tallyOf(usage)}  (${time}, by ${sort}; q ends)`;
  const [titles = "", ...lines] = usageTable(usage).trimEnd().split("\n");
  const room = Math.max(1, rows - 3);
  const hidden = lines.length - room;
  const shown = hidden > 0 ? [...lines.slice(0, room - 1), `… and ${hidden + 1} more`] : lines;
  return [printable(trouble === "" ? head : `${head}  ${trouble}`), "", titles, ...shown];
}
