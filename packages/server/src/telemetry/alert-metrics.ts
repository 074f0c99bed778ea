import { ALERT_KINDS, type AlertKind, DELIVERY_STATES, SWEEP_LAYERS } from "@holdfast/contract";
import { type AlertFigures, RULES } from "@holdfast/engine";
import { Gauge, type Registry } from "prom-client";

/**
 * Describes how the readings of one kind of alert are exported: as one gauge, or as one value of the gauge per label
 * value.
 */
interface GaugeSpec {
  name: string;
  help: string;
  /** Name of the gauge's label. The label values in `always` are exported even if they have no reading. */
  label?: { name: string; always: readonly string[] };
  /** Combines the readings of one gauge, or of one label value, into the exported value. */
  of: (values: readonly number[]) => number;
  /** Factor that each value is multiplied by. */
  scale?: number;
}

const only = (values: readonly number[]): number => values[0] ?? Number.NaN;
const most = (values: readonly number[]): number => Math.max(0, ...values);
const count = (values: readonly number[]): number => values.length;

/** Gauges by kind of alert; null if another metric already exports the value. */
const GAUGES: Readonly<Record<AlertKind, GaugeSpec | null>> = {
  timeout_rate: {
    name: "exec_timeout_percent",
    help: "share of execs that timed out, of those that ended in the window; NaN if too few ended",
    of: only,
  },
  too_many_active: {
    name: "sandboxes_active",
    help: "sandboxes that are ready, degraded, paused, waking or suspending",
    of: only,
  },
  active_escalation: null,
  running_long: {
    name: "sandboxes_running_long",
    help: "sandboxes that have been awake for longer than alertRunningMs",
    of: only,
  },
  stuck: {
    name: "stuck_seconds_max",
    help: "longest time that a sandbox has been degraded, stopping, creating, suspending or waking",
    of: most,
    scale: 0.001,
  },
  repeated_timeouts: {
    name: "sandbox_timeouts_max",
    help: "most execs of one sandbox that timed out in the window",
    of: most,
  },
  leak: {
    name: "leaks",
    help: "sandboxes or drives with orphaned resources",
    of: only,
  },
  cleanup_not_running: null,
  cleanup_failing: {
    name: "sweep_failed_in_a_row",
    help: "consecutive failed runs of a cleanup layer",
    label: { name: "layer", always: SWEEP_LAYERS },
    of: most,
  },
  audit_overdue: null,
  audit_incomplete: {
    name: "audit_incomplete",
    help: "1 if the last audit was incomplete",
    of: most,
  },
  observation_overdue: null,
  sandbox_failed: {
    name: "sandboxes_failed",
    help: "failed sandboxes that had been serving and are kept",
    of: count,
  },
  lease_exhausted: { name: "leases_exhausted", help: "sandboxes whose stop attempts are used up", of: count },
  lease_quarantined: {
    name: "leases_quarantined",
    help: "sandboxes whose lease or record is unreadable",
    of: count,
  },
  capacity: {
    name: "capacity_used_percent",
    help: "share of disk, memory and sandbox slots in use",
    label: { name: "what", always: ["disk", "memory", "sandboxes"] },
    of: only,
  },
  capacity_unmeasured: {
    name: "capacity_unmeasured",
    help: "1 if free disk and memory cannot be measured",
    of: most,
  },
  launches_suspended: null,
  delivery_failing: null,
};

/**
 * Exports alert readings, alerts and deliveries. A reading that failed is exported as NaN, never as an earlier value.
 */
export class AlertMetrics {
  readonly #firing: Gauge<"kind" | "severity">;
  readonly #deliveries: Gauge<"state">;
  readonly #age: Gauge;
  readonly #readings: ReadonlyMap<AlertKind, { spec: GaugeSpec; gauge: Gauge<string> }>;

  constructor(registry: Registry) {
    const gauge = <Label extends string>(name: string, help: string, labelNames: Label[]) =>
      new Gauge({ name: `holdfast_${name}`, help, labelNames, registers: [registry] });
    this.#firing = gauge("alerts", "alerts that fire", ["kind", "severity"]);
    this.#deliveries = gauge("deliveries", "messages about alerts that are kept", ["state"]);
    this.#age = gauge("alerts_evaluation_age_seconds", "time since alerts were last evaluated", []);
    this.#readings = new Map(
      ALERT_KINDS.flatMap((kind) => {
        const spec = GAUGES[kind];
        const labels = spec?.label === undefined ? [] : [spec.label.name];
        return spec === null ? [] : [[kind, { spec, gauge: gauge(spec.name, spec.help, labels) }] as const];
      }),
    );
  }

  show({ evaluatedAt, firing, readings, deliveries }: AlertFigures, now: number): void {
    const counts = new Map(firing.map((each) => [each.kind, each.count]));
    for (const kind of ALERT_KINDS)
      this.#firing.set({ kind, severity: RULES[kind].severity }, counts.get(kind) ?? 0);
    for (const state of DELIVERY_STATES) this.#deliveries.set({ state }, deliveries[state]);
    this.#age.set(evaluatedAt === null ? Number.NaN : Math.max(0, now - evaluatedAt) / 1000);
    for (const [kind, { spec, gauge }] of this.#readings) show(spec, gauge, readings[kind] ?? null);
  }
}

type Read = readonly { subject: string | null; value: number | null }[] | null;

function show({ label, of, scale = 1 }: GaugeSpec, gauge: Gauge<string>, read: Read): void {
  const figure = (some: Read) => {
    if (some === null) return Number.NaN;
    return of(some.map(({ value }) => value ?? Number.NaN)) * scale;
  };
  if (label === undefined) gauge.set(figure(read));
  for (const subject of label?.always ?? []) {
    const own = read?.filter((each) => each.subject === subject) ?? null;
    gauge.set({ [label?.name ?? ""]: subject }, figure(own));
  }
}
