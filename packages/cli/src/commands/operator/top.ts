import { setTimeout as sleep } from "node:timers/promises";
import { HoldfastError, type UsageSummary } from "@holdfast/sdk";
import { type Command, Option } from "commander";
import { duration } from "../../arguments/values.ts";
import type { Context } from "../../context.ts";
import { Interrupted } from "../../interrupt.ts";
import { print } from "../../output/streams.ts";
import { asJson, printable } from "../../output/table.ts";
import { inOrder, tallyOf, USAGE_ORDERS, type UsageOrder, usageTable } from "../../output/usage-table.ts";
import { LiveScreen } from "../../terminal/live-screen.ts";

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
    .summary("show resource usage of all sandboxes, live")
    .addOption(new Option("--sort <order>", "sort order").choices(USAGE_ORDERS).default("cpu"))
    .addOption(new Option("--every <time>", "refresh interval").argParser(duration).default(EVERY_MS, "2s"))
    .option("--once", "print the table once and exit; the default when piped")
    .option("--json", "print the figures once, as JSON")
    .description(
      "Shows a live table of all sandboxes, busiest first; press q to quit. The figures come from the server's own measurements, " +
        "taken every 5 s, so 'top' puts no load on the sandboxes.",
    )
    .addHelpText(
      "after",
      "\nExamples:\n  holdfast top\n  holdfast top --sort memory --every 5s\n  holdfast top --once | head",
    )
    .action(async (options: Options) => {
      const isLive = process.stdin.isTTY && process.stdout.isTTY && !options.once && !options.json;
      if (isLive) return live(context, options);
      const usage = inOrder(await ask(context, context.interruption.signal), options.sort);
      print(options.json ? asJson(usage) : usageTable(usage));
    });
}

const ask = (context: Context, signal: AbortSignal): Promise<UsageSummary[]> =>
  context.client().sandboxes.usage({ signal });

/** The last known usage, and the error of the last request if that request failed. */
interface Known {
  usage: UsageSummary[];
  at: number | null;
  trouble: string;
}

/**
 * Shows usage continuously. While the server is unavailable, the last known figures stay on the screen, together with
 * the error.
 */
async function live(context: Context, { sort, every }: Options): Promise<void> {
  const over = new AbortController();
  const signal = AbortSignal.any([context.interruption.signal, over.signal]);
  const known: Known = { usage: [], at: null, trouble: "" };
  using screen = new LiveScreen({
    draw: (rows) => page(known, sort, rows),
    onKey: (key) => {
      if (key === "q" || key === "Q") over.abort();
      // In raw mode the terminal does not turn Ctrl-C into a signal, so the key itself interrupts the command.
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
  const time = at === null ? "loading" : new Date(at).toLocaleTimeString();
  const head = `${tallyOf(usage)}  (${time}, by ${sort}; q to quit)`;
  const [titles = "", ...lines] = usageTable(usage).trimEnd().split("\n");
  const room = Math.max(1, rows - 3);
  const hidden = lines.length - room;
  const shown = hidden > 0 ? [...lines.slice(0, room - 1), `… and ${hidden + 1} more`] : lines;
  return [printable(trouble === "" ? head : `${head}  ${trouble}`), "", titles, ...shown];
}
