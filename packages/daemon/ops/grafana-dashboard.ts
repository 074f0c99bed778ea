/**
 * Generates `ops/grafana-dashboard.json` from a table of panels. The threshold lines are those of the engine's alert
 * rules.
 */
import { fileURLToPath } from "node:url";
import { type AlertKind, NUMBERS, type Numbers } from "@holdfast/contract";
import { limitsOf } from "@holdfast/engine";
import { readConfig } from "../src/config.ts";

export const file = fileURLToPath(new URL("../../../ops/grafana-dashboard.json", import.meta.url));

interface Panel {
  title: string;
  description: string;
  /** The queries of the panel. Each is drawn as one line with its legend. */
  queries: readonly [expr: string, legend: string][];
  /** `stat` shows one value, `timeseries` shows lines over time. */
  type: "stat" | "timeseries";
  unit: string;
  /** Width in columns, of 24. */
  width: number;
  /** The alert whose threshold is drawn; `scale` converts the threshold to the panel's unit. */
  alert?: { kind: AlertKind; subject?: string; scale?: number };
  stacked?: boolean;
}

interface Row {
  title: string;
  panels: readonly Panel[];
}

const SECONDS = 0.001;

const ROWS: readonly Row[] = [
  {
    title: "Now",
    panels: [
      {
        title: "Alerts",
        description: "Active alerts by severity. `holdfast alerts` lists them.",
        queries: [["sum by (severity) (holdfast_alerts)", "{{severity}}"]],
        ...{ type: "stat", unit: "short", width: 6 },
      },
      {
        title: "Active sandboxes",
        description: "Ready, degraded, paused, waking or suspending.",
        queries: [["holdfast_sandboxes_active", ""]],
        ...{ type: "stat", unit: "short", width: 4 },
        alert: { kind: "too_many_active" },
      },
      {
        title: "Timeouts",
        description: "Share of execs that timed out, of those that ended in the window.",
        queries: [["holdfast_exec_timeout_percent", ""]],
        ...{ type: "stat", unit: "percent", width: 4 },
        alert: { kind: "timeout_rate" },
      },
      {
        title: "Leaks",
        description: "Resources on the host that no record owns.",
        queries: [["holdfast_leaks", ""]],
        ...{ type: "stat", unit: "short", width: 4 },
        alert: { kind: "leak" },
      },
      {
        title: "Dead deliveries",
        description: "Webhook deliveries that failed permanently.",
        queries: [['holdfast_deliveries{state="dead"}', ""]],
        ...{ type: "stat", unit: "short", width: 3 },
        alert: { kind: "delivery_failing" },
      },
      {
        title: "Evaluated",
        description: "Time since alerts were last evaluated.",
        queries: [["holdfast_alerts_evaluation_age_seconds", ""]],
        ...{ type: "stat", unit: "s", width: 3 },
      },
    ],
  },
  {
    title: "Sandboxes",
    panels: [
      {
        title: "By status",
        description: "Without `terminated`, which is a running total.",
        queries: [['holdfast_sandboxes{status!="terminated"}', "{{status}}"]],
        ...{ type: "timeseries", unit: "short", width: 12, stacked: true },
      },
      {
        title: "Active",
        description: "With the threshold above which one person cannot oversee them.",
        queries: [
          ["holdfast_sandboxes_active", "active"],
          ["holdfast_sandboxes_running_long", "awake for long"],
        ],
        ...{ type: "timeseries", unit: "short", width: 6 },
        alert: { kind: "too_many_active" },
      },
      {
        title: "Stuck",
        description: "Longest time a sandbox has been degraded, stopping, creating, suspending or waking.",
        queries: [["holdfast_stuck_seconds_max", "longest"]],
        ...{ type: "timeseries", unit: "s", width: 6 },
        alert: { kind: "stuck", scale: SECONDS },
      },
      {
        title: "Launches",
        description: "95th percentile of launches, by outcome.",
        queries: [
          [
            "histogram_quantile(0.95, sum by (le, outcome) (rate(holdfast_launch_seconds_bucket[5m])))",
            "{{outcome}}",
          ],
        ],
        ...{ type: "timeseries", unit: "s", width: 12 },
      },
      {
        title: "Queued launches",
        description: "Creates waiting for a launch slot, and whether launches are suspended.",
        queries: [
          ["holdfast_launches_waiting", "waiting"],
          ["holdfast_launches_suspended", "suspended"],
        ],
        ...{ type: "timeseries", unit: "short", width: 6 },
      },
      {
        title: "Links",
        description: "Keeper links that are down, and the number of lost links.",
        queries: [
          ['holdfast_links{state="down"}', "down"],
          ["increase(holdfast_links_lost_total[5m])", "lost in 5 min"],
        ],
        ...{ type: "timeseries", unit: "short", width: 6 },
      },
    ],
  },
  {
    title: "Execs",
    panels: [
      {
        title: "Ended, by outcome",
        description: "Per second.",
        queries: [["sum by (status) (rate(holdfast_execs_ended_total[5m]))", "{{status}}"]],
        ...{ type: "timeseries", unit: "ops", width: 12, stacked: true },
      },
      {
        title: "Timeouts",
        description: "Share of the execs that ended in the window.",
        queries: [["holdfast_exec_timeout_percent", "timed out"]],
        ...{ type: "timeseries", unit: "percent", width: 6 },
        alert: { kind: "timeout_rate" },
      },
      {
        title: "In progress",
        description: "Running and queued execs.",
        queries: [
          ["holdfast_execs_running", "running"],
          ["holdfast_execs_queued", "queued"],
        ],
        ...{ type: "timeseries", unit: "short", width: 6 },
      },
    ],
  },
  {
    title: "Host",
    panels: [
      {
        title: "In use",
        description: "Share of disk, memory and sandbox slots in use.",
        queries: [["holdfast_capacity_used_percent", "{{what}}"]],
        ...{ type: "timeseries", unit: "percent", width: 12 },
        alert: { kind: "capacity", subject: "disk" },
      },
      {
        title: "Free",
        description: "Below the reserves, no sandbox is launched.",
        queries: [
          ["holdfast_disk_free_bytes", "disk"],
          ["holdfast_memory_free_bytes", "memory"],
        ],
        ...{ type: "timeseries", unit: "bytes", width: 12 },
      },
    ],
  },
  {
    title: "Cleanup",
    panels: [
      {
        title: "Age of each layer",
        description: "Time since each cleanup layer last ran.",
        queries: [["holdfast_sweep_age_seconds", "{{layer}}"]],
        ...{ type: "timeseries", unit: "s", width: 8 },
      },
      {
        title: "Consecutive failures",
        description: "Consecutive failures of each cleanup layer.",
        queries: [["holdfast_sweep_failed_in_a_row", "{{layer}}"]],
        ...{ type: "timeseries", unit: "short", width: 4 },
      },
      {
        title: "Audit and observation",
        description: "Time since the last audit and the last observation.",
        queries: [
          ["holdfast_audit_age_seconds", "audit"],
          ["holdfast_observation_age_seconds", "observation"],
        ],
        ...{ type: "timeseries", unit: "s", width: 6 },
        alert: { kind: "audit_overdue", scale: SECONDS },
      },
      {
        title: "Leaks and leases",
        description: "Values that should be zero.",
        queries: [
          ["holdfast_leaks", "leaks"],
          ["holdfast_leases_exhausted", "exhausted leases"],
          ["holdfast_leases_quarantined", "quarantined leases"],
        ],
        ...{ type: "timeseries", unit: "short", width: 6 },
        alert: { kind: "leak" },
      },
    ],
  },
  {
    title: "Alerts and HTTP",
    panels: [
      {
        title: "Active alerts",
        description: "Active alerts by kind.",
        queries: [["holdfast_alerts > 0", "{{kind}}"]],
        ...{ type: "timeseries", unit: "short", width: 8, stacked: true },
      },
      {
        title: "Deliveries",
        description: "Retained webhook deliveries by state.",
        queries: [['holdfast_deliveries{state!="delivered"}', "{{state}}"]],
        ...{ type: "timeseries", unit: "short", width: 4 },
        alert: { kind: "delivery_failing" },
      },
      {
        title: "Requests",
        description: "95th percentile by route, without routes that wait by design.",
        queries: [
          [
            'histogram_quantile(0.95, sum by (le, route) (rate(holdfast_http_request_seconds_bucket{route!~".*(output|attach|watch|events).*"}[5m])))',
            "{{route}}",
          ],
        ],
        ...{ type: "timeseries", unit: "s", width: 8 },
      },
      {
        title: "Errors",
        description: "`internal` is always a bug.",
        queries: [["sum by (code) (rate(holdfast_http_errors_total[5m]))", "{{code}}"]],
        ...{ type: "timeseries", unit: "ops", width: 4 },
      },
    ],
  },
];

const HEIGHT = { stat: 4, timeseries: 8 } as const;
const COLUMNS = 24;
const SOURCE = { type: "prometheus", uid: "$" + "{source}" };

function panelsOf(numbers: Numbers): object[] {
  const panels: object[] = [];
  let y = 0;
  for (const row of ROWS) {
    const place = { id: panels.length + 1, gridPos: { x: 0, y, w: COLUMNS, h: 1 } };
    panels.push({ ...place, type: "row", title: row.title, collapsed: false, panels: [] });
    y += 1;
    let x = 0;
    let lowest = y;
    for (const panel of row.panels) {
      if (x + panel.width > COLUMNS) [x, y] = [0, lowest];
      const h = HEIGHT[panel.type];
      panels.push({
        id: panels.length + 1,
        gridPos: { x, y, w: panel.width, h },
        ...panelOf(panel, numbers),
      });
      x += panel.width;
      lowest = Math.max(lowest, y + h);
    }
    y = lowest;
  }
  return panels;
}

function panelOf(
  { title, description, queries, type, unit, alert, stacked }: Panel,
  numbers: Numbers,
): object {
  const line = alert === undefined ? null : lineOf(alert, numbers);
  const steps = [{ color: "green", value: null }, ...(line === null ? [] : [{ color: "red", value: line }])];
  const custom = {
    thresholdsStyle: { mode: line === null ? "off" : "line" },
    stacking: { mode: stacked ? "normal" : "none" },
    fillOpacity: stacked ? 30 : 5,
  };
  const defaults = {
    unit,
    thresholds: { mode: "absolute", steps },
    ...(type === "timeseries" ? { custom } : {}),
  };
  return {
    type,
    title,
    description,
    datasource: SOURCE,
    targets: queries.map(([expr, legendFormat], index) => ({
      refId: String.fromCharCode(65 + index),
      datasource: SOURCE,
      expr,
      legendFormat,
    })),
    fieldConfig: { defaults, overrides: [] },
    options:
      type === "stat"
        ? { reduceOptions: { calcs: ["lastNotNull"] }, colorMode: "background" }
        : { legend: { displayMode: "list", placement: "bottom" }, tooltip: { mode: "multi" } },
  };
}

/**
 * Returns the threshold line of a panel: values above it are red. A threshold of 0 is drawn at 1, the next whole
 * number. Returns null if the alert is switched off.
 */
function lineOf({ kind, subject, scale = 1 }: NonNullable<Panel["alert"]>, numbers: Numbers): number | null {
  const { threshold } = limitsOf(kind, subject ?? null, numbers);
  if (!Number.isFinite(threshold)) return null;
  return threshold === 0 ? 1 : threshold * scale;
}

export async function generate(numbers: Numbers = NUMBERS): Promise<string> {
  const dashboard = {
    uid: "holdfast",
    title: "Holdfast",
    description: "Generated by packages/daemon/ops/grafana-dashboard.ts; don't edit.",
    tags: ["holdfast"],
    schemaVersion: 39,
    version: 1,
    editable: true,
    refresh: "30s",
    time: { from: "now-6h", to: "now" },
    templating: {
      list: [{ name: "source", label: "Data source", type: "datasource", query: "prometheus", hide: 0 }],
    },
    annotations: { list: [] },
    panels: panelsOf(numbers),
  };
  return `${JSON.stringify(dashboard, null, 2)}\n`;
}

if (import.meta.main) {
  const { numbers } = readConfig(process.env, { uid: process.getuid?.() ?? 0, isTerminal: false });
  process.stdout.write(await generate(numbers));
}
