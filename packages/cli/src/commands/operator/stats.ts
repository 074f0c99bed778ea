import type { Alert, LayerHealth, Stats } from "@holdfast/sdk";
import type { Command } from "commander";
import { alertTable } from "../alert-words.ts";
import type { Context } from "../context.ts";
import { age, asJson, size, span, table } from "../table.ts";

export function registerStats(program: Command, context: Context): void {
  program
    .command("stats")
    .summary("show exact counts, alerts that fire, and how the server's own cleaning does")
    .option("--json", "print them as JSON")
    .addHelpText("after", "\nExamples:\n  holdfast stats\n  holdfast stats --json")
    .action(async ({ json }: { json?: boolean }) => {
      const { signal } = context.interruption;
      const client = context.client();
      const [stats, { items: alerts }] = await Promise.all([
        client.stats({ signal }),
        client.alerts.list({ signal }),
      ]);
      if (json) process.stdout.write(asJson({ ...stats, alerts }));
      else process.stdout.write([counts(stats, alerts), sweeps(stats.sweeps), ...firing(alerts)].join("\n"));
    });
}

const firing = (alerts: readonly Alert[]): string[] => (alerts.length === 0 ? [] : [alertTable(alerts)]);

function counts(
  { sandboxes, totals, links, launches, capacity, ...stats }: Stats,
  alerts: readonly Alert[],
): string {
  const rows: [string, string | number][] = [
    ["alerts firing", alerts.length],
    ...Object.entries(sandboxes).filter(([status, count]) => count > 0 || status === "ready"),
    ...Object.entries(totals).map(([name, count]): [string, number] => [`total ${name}`, count]),
    ["execs running", stats.execsRunning],
    ["execs queued", stats.execsQueued],
    ["readers", stats.readers],
    ["readers cut off, wedged", stats.readersCut.wedged],
    ["streams ended by age", stats.readersCut.expired],
    ["links up", links.up],
    ["links down", links.down],
    ["links lost", links.lost],
    ["orphans", stats.orphans],
    ["launches", launches.state],
    ["launches waiting", launches.waiting],
    ["launches failed in a row", launches.failuresInARow],
    ["disk free", freeOf(capacity?.diskFreeBytes, capacity?.diskTotalBytes)],
    ["memory free", freeOf(capacity?.memoryFreeBytes, capacity?.memoryTotalBytes)],
    ["last observation", stats.lastObservationAt ?? "never"],
    ["last audit", stats.lastAuditAt ?? "never"],
  ];
  return table(
    ["WHAT", "COUNT"],
    rows.map(([what, count]) => [what, String(count)]),
  );
}

const freeOf = (free: number | undefined, total: number | undefined): string =>
  free === undefined || total === undefined ? "not measured yet" : `${size(free)} of ${size(total)}`;

const sweeps = (layers: readonly LayerHealth[]): string =>
  table(
    ["SWEEP", "EVERY", "LAST", "RUNS", "REMOVED", "FAILURES", "HEALTH"],
    layers.map((layer) => [
      layer.layer,
      span(layer.everyMs),
      layer.lastAt === null ? "never" : `${age(layer.lastAt)} ago`,
      String(layer.runs),
      String(layer.removed),
      String(layer.failures),
      healthOf(layer),
    ]),
  );

function healthOf({ overdue, lastError }: LayerHealth): string {
  const complaints = [overdue ? "overdue" : "", lastError ?? ""].filter((complaint) => complaint !== "");
  return complaints.length === 0 ? "ok" : complaints.join(": ");
}
