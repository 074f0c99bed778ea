/**
 * Generates `ops/prometheus-rules.yml` from the engine's alert rules, so that each threshold is defined once. To use
 * other numbers than the defaults: `HOLDFAST_NUMBERS_FILE=numbers.json node packages/daemon/ops/prometheus-rules.ts >
 * rules.yml`.
 */
import { fileURLToPath } from "node:url";
import { ALERT_KINDS, type AlertKind, NUMBERS, type Numbers, SWEEP_LAYERS } from "@holdfast/contract";
import { limitsOf, RULES } from "@holdfast/engine";
import { readConfig } from "../src/config.ts";

export const file = fileURLToPath(new URL("../../../ops/prometheus-rules.yml", import.meta.url));

interface Expression {
  expr: string;
  /** One sentence that describes the problem; `{{ $value }}` is the measured value. */
  summary: string;
  /** Label that distinguishes the rules of one alert kind, such as the name of a cleanup layer. */
  subject?: string;
}

interface PrometheusRule extends Expression {
  alert: string;
  kind: string;
  severity: string;
  forMs: number;
  clearForMs: number;
}

const VALUE = '{{ $value | printf "%.4g" }}';

const seconds = (ms: number): string => String(ms / 1000);
const duration = (ms: number): string => {
  if (ms > 0 && ms % 3_600_000 === 0) return `${ms / 3_600_000}h`;
  if (ms > 0 && ms % 60_000 === 0) return `${ms / 60_000}m`;
  return `${Math.max(1, Math.round(ms / 1000))}s`;
};

/**
 * The expressions of each alert kind. They use raw metrics where possible, so that the rules work even if the engine's
 * own alert evaluation fails.
 */
const EXPRESSIONS: Readonly<Record<AlertKind, (numbers: Numbers) => Expression[]>> = {
  timeout_rate: (numbers) => {
    const window = duration(numbers.alertWindowMs);
    const sum = (series: string) => `sum by (instance) (increase(${series}[${window}]))`;
    const ended = sum("holdfast_execs_ended_total");
    const timedOut = sum('holdfast_execs_ended_total{status="timed_out"}');
    const rate = `100 * ${timedOut} / ${ended} > ${above("timeout_rate", numbers)}`;
    return [
      {
        expr: `${rate} and ${ended} >= ${numbers.alertMinExecs}`,
        summary: `${VALUE} % of the execs that ended in the last ${window} timed out.`,
      },
    ];
  },
  too_many_active: (numbers) => [
    {
      expr: `holdfast_sandboxes_active > ${above("too_many_active", numbers)}`,
      summary: `${VALUE} sandboxes are active.`,
    },
  ],
  active_escalation: (numbers) => [
    {
      expr: `holdfast_sandboxes_active > ${above("active_escalation", numbers)}`,
      summary: `${VALUE} sandboxes have been active for a long time.`,
    },
  ],
  running_long: (numbers) => [
    {
      expr: `holdfast_sandboxes_running_long > ${above("running_long", numbers)}`,
      summary: `${VALUE} sandboxes have been awake for more than ${duration(numbers.alertRunningMs)}.`,
    },
  ],
  stuck: (numbers) => [
    {
      expr: `holdfast_stuck_seconds_max > ${seconds(above("stuck", numbers))}`,
      summary: `A sandbox has been degraded, stopping, creating, suspending or waking for ${VALUE} s.`,
    },
  ],
  repeated_timeouts: (numbers) => [
    {
      expr: `holdfast_sandbox_timeouts_max > ${above("repeated_timeouts", numbers)}`,
      summary: `${VALUE} execs of one sandbox timed out in the last ${duration(numbers.alertWindowMs)}.`,
    },
  ],
  leak: (numbers) => [
    {
      expr: `holdfast_leaks > ${above("leak", numbers)} or holdfast_orphans > ${above("leak", numbers)}`,
      summary: `Orphaned resources of ${VALUE} sandboxes or drives exist; run 'holdfast audit'.`,
    },
  ],
  cleanup_not_running: (numbers) =>
    SWEEP_LAYERS.map((layer) => ({
      expr: `holdfast_sweep_age_seconds{layer="${layer}"} > ${seconds(above("cleanup_not_running", numbers, layer))} or holdfast_sweep_overdue{layer="${layer}"} > 0`,
      summary: `Cleanup layer ${layer} does not run.`,
      subject: layer,
    })),
  cleanup_failing: (numbers) => [
    {
      expr: `holdfast_sweep_failed_in_a_row > ${above("cleanup_failing", numbers)}`,
      summary: `Cleanup layer {{ $labels.layer }} has failed ${VALUE} times in a row.`,
    },
  ],
  audit_overdue: (numbers) => [
    {
      expr: `holdfast_audit_age_seconds > ${seconds(above("audit_overdue", numbers))}`,
      summary: `The last audit ran ${VALUE} s ago.`,
    },
  ],
  audit_incomplete: (numbers) => [
    {
      expr: `holdfast_audit_incomplete > ${above("audit_incomplete", numbers)}`,
      summary: "The last audit was incomplete.",
    },
  ],
  observation_overdue: (numbers) => [
    {
      expr: `holdfast_observation_age_seconds > ${seconds(above("observation_overdue", numbers))}`,
      summary: `Instances were last observed ${VALUE} s ago; statuses are stale.`,
    },
  ],
  sandbox_failed: (numbers) => [
    {
      expr: `holdfast_sandboxes_failed > ${above("sandbox_failed", numbers)}`,
      summary: `${VALUE} sandboxes failed after they had been serving.`,
    },
  ],
  lease_exhausted: (numbers) => [
    {
      expr: `holdfast_leases_exhausted > ${above("lease_exhausted", numbers)}`,
      summary: `${VALUE} sandboxes could not be stopped.`,
    },
  ],
  lease_quarantined: (numbers) => [
    {
      expr: `holdfast_leases_quarantined > ${above("lease_quarantined", numbers)}`,
      summary: `The lease or record of ${VALUE} sandboxes is unreadable.`,
    },
  ],
  capacity: (numbers) => [
    {
      expr: `holdfast_capacity_used_percent > ${above("capacity", numbers)}`,
      summary: `${VALUE} % of {{ $labels.what }} is in use.`,
    },
  ],
  capacity_unmeasured: (numbers) => [
    {
      expr: `holdfast_capacity_unmeasured > ${above("capacity_unmeasured", numbers)}`,
      summary: "Free disk and memory cannot be measured, so no sandbox is launched.",
    },
  ],
  launches_suspended: (numbers) => [
    {
      expr: `holdfast_launches_suspended > ${above("launches_suspended", numbers)}`,
      summary: "Launches keep failing and are suspended.",
    },
  ],
  delivery_failing: (numbers) => [
    {
      expr: `holdfast_deliveries{state="dead"} > ${above("delivery_failing", numbers)}`,
      summary: `${VALUE} alert notifications could not be delivered.`,
    },
  ],
};

const above = (kind: AlertKind, numbers: Numbers, subject: string | null = null): number =>
  limitsOf(kind, subject, numbers).threshold;

const camel = (kind: string): string =>
  kind.replaceAll(/(^|_)([a-z])/g, (_all, _before, letter: string) => letter.toUpperCase());

/** Returns the rules of one kind; none if the alert is switched off. */
function rulesOf(kind: AlertKind, numbers: Numbers): PrometheusRule[] {
  const { threshold, forMs, clearForMs } = limitsOf(kind, null, numbers);
  if (!Number.isFinite(threshold)) return [];
  const { severity } = RULES[kind];
  return EXPRESSIONS[kind](numbers).map((expression) => ({
    ...expression,
    alert: `Holdfast${camel(kind)}`,
    ...{ kind, severity, forMs, clearForMs },
  }));
}

/** Returns rules for problems that the engine itself cannot report, because it has stopped or is broken. */
function watchTheWatcher(numbers: Numbers): PrometheusRule[] {
  const { alertEveryMs, alertLateRounds, alertForMs, alertClearForMs } = numbers;
  const rest = { kind: "server", severity: "critical", forMs: alertForMs, clearForMs: alertClearForMs };
  return [
    {
      ...rest,
      alert: "HoldfastAlertsNotEvaluated",
      expr: `holdfast_alerts_evaluation_age_seconds > ${seconds((alertLateRounds + 2) * alertEveryMs)}`,
      summary: `Alerts were last evaluated ${VALUE} s ago.`,
    },
    {
      ...rest,
      alert: "HoldfastAbsent",
      expr: "absent(holdfast_alerts_evaluation_age_seconds)",
      summary: "Prometheus scrapes no Holdfast server.",
    },
  ];
}

/** Formats a rule as YAML. Texts are written as JSON strings, which are valid YAML strings. */
const yaml = ({ alert, expr, summary, kind, subject, severity, forMs, clearForMs }: PrometheusRule): string =>
  [
    `      - alert: ${alert}`,
    `        expr: ${JSON.stringify(expr)}`,
    ...(forMs > 0 ? [`        for: ${duration(forMs)}`] : []),
    `        keep_firing_for: ${duration(clearForMs)}`,
    "        labels:",
    `          severity: ${severity}`,
    `          kind: ${kind}`,
    ...(subject === undefined ? [] : [`          subject: ${subject}`]),
    "        annotations:",
    `          summary: ${JSON.stringify(summary)}`,
    "",
  ].join("\n");

const HEAD = `# Generated by packages/daemon/ops/prometheus-rules.ts from the rules and numbers of Holdfast; don't edit.
# Needs Prometheus 2.42 or later. For other numbers than the defaults see docs/operating.md.
groups:
  - name: holdfast
    rules:
`;

export async function generate(numbers: Numbers = NUMBERS): Promise<string> {
  const rules = [...ALERT_KINDS.flatMap((kind) => rulesOf(kind, numbers)), ...watchTheWatcher(numbers)];
  return HEAD + rules.map(yaml).join("");
}

if (import.meta.main) {
  const { numbers } = readConfig(process.env, { uid: process.getuid?.() ?? 0, isTerminal: false });
  process.stdout.write(await generate(numbers));
}
