import type { Alert, LayerHealth, Stats } from "@holdfast/sdk";
import type { Command } from "commander";
import type { Context } from "../../context.ts";
import { alertTable } from "../../output/alert-words.ts";
import { print } from "../../output/streams.ts";
import { age, asJson, size, span, table } from "../../output/table.ts";

export function registerStats(program: Command, context: Context): void {
  program
    .command("stats")
    .summary("show counts, active alerts and the health of the server's cleanup")
    .option("--json", "print the statistics as JSON")
    .addHelpText("after", "\nExamples:\n  holdfast stats\n  holdfast stats --json")
    .action(async ({ json }: { json?: boolean }) => {
      const { signal } = context.interruption;
      const client = context.client();
      const [stats, { items: alerts }] = await Promise.all([
        client.stats({ signal }),
        client.alerts.list({ signal }),
      ]);
      if (json) print(asJson({ ...stats, alerts }));
      else print([counts(stats, alerts), sweeps(stats.sweeps), ...firing(alerts)].join("\n"));
    });
}

const firing = (alerts: readonly Alert[]): string[] => (alerts.length === 0 ? [] : [alertTable(alerts)]);

function counts(
  { sandboxes, totals, links, launches, capacity, driver, ...stats }: Stats,
  alerts: readonly Alert[],
): string {
  const rows: [string, string | number][] = [
    ["alerts firing", alerts.length],
    ...Object.entries(sandboxes).filter(([status, count]) => count > 0 || status === "ready"),
    ...Object.entries(totals).map(([name, count]): [string, number] => [`total ${name}`, count]),
    ["execs running", stats.execsRunning],
    ["execs queued", stats.execsQueued],
    ["readers", stats.readers],
    ["stalled readers disconnected", stats.readersCut.wedged],
    ["streams ended at maximum age", stats.readersCut.expired],
    ["links up", links.up],
    ["links down", links.down],
    ["links lost", links.lost],
    ["orphans", stats.orphans],
    ["launches", launches.state],
    ["launches waiting", launches.waiting],
    ["consecutive launch failures", launches.failuresInARow],
    ["disk free", freeOf(capacity?.diskFreeBytes, capacity?.diskTotalBytes)],
    ["memory free", freeOf(capacity?.memoryFreeBytes, capacity?.memoryTotalBytes)],
    ["driver", driver.name],
    ["driver capabilities", driver.capabilities.join(", ")],
    ["last observation", stats.lastObservationAt ?? "never"],
    ["last audit", stats.lastAuditAt ?? "never"],
  ];
  return table(
    ["STATISTIC", "VALUE"],
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
