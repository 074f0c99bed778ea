import {
  ALERT_KINDS,
  type AlertKind,
  type AlertUnit,
  type Numbers,
  type Severity,
  SWEEP_LAYERS,
  type SweepLayer,
} from "@holdfast/contract";
import type { Reading, Readings } from "../ports/api.ts";

type Figure = (numbers: Numbers, subject: string | null) => number;

interface Rule {
  severity: Severity;
  unit: AlertUnit;
  /** The value above which the alert fires. */
  threshold: Figure;
  /** The value at or below which the alert clears. */
  clear: Figure;
  /** The value under normal conditions. */
  target: Figure | null;
  /** How long the value must be above the threshold before the alert fires. */
  forMs: Figure;
  /** The message of an alert that clears because its value no longer exists. */
  clearedMessage: string;
}

const none: Figure = () => 0;
/**
 * Switches an alert off. As a threshold, it is never exceeded, so the alert does not fire. As a clear value, it is
 * above every value, so an alert that already fires clears.
 */
const OFF = Number.POSITIVE_INFINITY;
const usualFor: Figure = ({ alertForMs }) => alertForMs;

/** Fires for any value above 0. */
const ANY = { unit: "count", threshold: none, clear: none, target: none, forMs: usualFor } as const;

/** The interval of each cleanup layer. */
const PACES: Readonly<Record<SweepLayer, Figure>> = {
  stale: ({ sweepStaleMs }) => sweepStaleMs,
  age: ({ sweepAgeMs }) => sweepAgeMs,
  pressure: ({ sweepPressureMs }) => sweepPressureMs,
  reconcile: ({ auditEveryMs }) => auditEveryMs,
};
const paceOf: Figure = (numbers, subject) =>
  SWEEP_LAYERS.reduce((ms, layer) => (layer === subject ? PACES[layer](numbers, layer) : ms), 0);

/**
 * The part that all alert rules about late periodic jobs share. The threshold is `alertLateRounds` intervals of the job,
 * and the clear value is one interval of the job. Two evaluation intervals are added to both as tolerance.
 */
const overdue = (pace: Figure) =>
  ({
    unit: "ms",
    threshold: (numbers, subject) =>
      numbers.alertLateRounds * pace(numbers, subject) + 2 * numbers.alertEveryMs,
    clear: (numbers, subject) => pace(numbers, subject) + 2 * numbers.alertEveryMs,
    target: pace,
    forMs: usualFor,
  }) as const satisfies Partial<Rule>;

/** The rule of each kind of alert. Thresholds that can be configured come from `Numbers`. */
export const RULES: Readonly<Record<AlertKind, Rule>> = {
  timeout_rate: {
    severity: "warning",
    unit: "percent",
    threshold: ({ alertTimeoutPercent }) => alertTimeoutPercent,
    clear: ({ clearTimeoutPercent }) => clearTimeoutPercent,
    target: ({ targetTimeoutPercent }) => targetTimeoutPercent,
    forMs: usualFor,
    clearedMessage: "Too few execs ended recently to compute a timeout rate.",
  },
  too_many_active: {
    severity: "warning",
    unit: "count",
    threshold: ({ alertActive }) => alertActive || OFF,
    clear: ({ alertActive, clearActive }) => (alertActive === 0 ? OFF : clearActive),
    target: ({ targetActive }) => targetActive,
    forMs: usualFor,
    clearedMessage: "No sandbox is active.",
  },
  active_escalation: {
    severity: "critical",
    unit: "count",
    threshold: ({ alertEscalationActive }) => alertEscalationActive || OFF,
    clear: ({ alertEscalationActive, clearEscalationActive }) =>
      alertEscalationActive === 0 ? OFF : clearEscalationActive,
    target: ({ targetActive }) => targetActive,
    forMs: ({ alertEscalationForMs }) => alertEscalationForMs,
    clearedMessage: "No sandbox is active.",
  },
  running_long: {
    ...ANY,
    severity: "info",
    threshold: ({ alertRunningMs }) => (alertRunningMs === 0 ? OFF : 0),
    clear: ({ alertRunningMs }) => (alertRunningMs === 0 ? OFF : 0),
    target: null,
    clearedMessage: "No sandbox has been awake for too long.",
  },
  stuck: {
    severity: "warning",
    unit: "ms",
    threshold: ({ alertStuckMs }) => alertStuckMs,
    clear: ({ alertStuckMs }) => alertStuckMs,
    target: null,
    // The measured value is itself a duration, so the alert fires at once.
    forMs: none,
    clearedMessage: "The sandbox is no longer stuck.",
  },
  repeated_timeouts: {
    severity: "warning",
    unit: "count",
    threshold: ({ alertRepeatedTimeouts }) => alertRepeatedTimeouts,
    clear: ({ clearRepeatedTimeouts }) => clearRepeatedTimeouts,
    target: none,
    forMs: usualFor,
    clearedMessage: "No exec of the sandbox timed out recently.",
  },
  leak: { ...ANY, severity: "critical", clearedMessage: "No orphaned resources are left." },
  cleanup_not_running: {
    ...overdue(paceOf),
    severity: "critical",
    clearedMessage: "The cleaning layer runs again.",
  },
  cleanup_failing: { ...ANY, severity: "warning", clearedMessage: "The cleaning layer no longer fails." },
  audit_overdue: {
    ...overdue(({ auditEveryMs }) => auditEveryMs),
    severity: "critical",
    clearedMessage: "An audit was completed.",
  },
  audit_incomplete: { ...ANY, severity: "warning", clearedMessage: "The last audit was complete." },
  observation_overdue: {
    ...overdue(({ observeEveryMs }) => observeEveryMs),
    severity: "critical",
    clearedMessage: "Instances are observed again.",
  },
  sandbox_failed: { ...ANY, severity: "warning", clearedMessage: "The sandbox was restarted or deleted." },
  lease_exhausted: {
    ...ANY,
    severity: "critical",
    clearedMessage: "The sandbox's absence was observed, or its record was deleted.",
  },
  lease_quarantined: {
    ...ANY,
    severity: "critical",
    clearedMessage: "The record can be read again, or was deleted.",
  },
  capacity: {
    severity: "warning",
    unit: "percent",
    threshold: ({ alertCapacityPercent }) => alertCapacityPercent,
    clear: ({ clearCapacityPercent }) => clearCapacityPercent,
    target: null,
    forMs: usualFor,
    clearedMessage: "There is enough capacity again.",
  },
  capacity_unmeasured: { ...ANY, severity: "critical", clearedMessage: "The host is measured again." },
  launches_suspended: { ...ANY, severity: "critical", clearedMessage: "Launches work again." },
  delivery_failing: { ...ANY, severity: "warning", clearedMessage: "No failed delivery is left." },
};

interface Limits {
  /** Infinite if the alert is switched off. */
  threshold: number;
  clearBelow: number;
  target: number | null;
  forMs: number;
  clearForMs: number;
}

/** Limits the clear value to the threshold: with a higher clear value the alert would fire and clear in alternation. */
export function limitsOf(kind: AlertKind, subject: string | null, numbers: Numbers): Limits {
  const { threshold: thresholdOf, clear, target, forMs } = RULES[kind];
  const threshold = thresholdOf(numbers, subject);
  return {
    threshold,
    clearBelow: Math.min(clear(numbers, subject), threshold),
    target: target === null ? null : target(numbers, subject),
    forMs: forMs(numbers, subject),
    clearForMs: numbers.alertClearForMs,
  };
}

type Stage =
  | { stage: "rising"; ms: number }
  /** `calmMs`: how long the value has been at or below its clear value; null while it is above. */
  | { stage: "firing"; calmMs: number | null };

/** The alert state of a value that is, or was, above its threshold. */
export type Track = { kind: AlertKind; subject: string | null } & Stage;

export interface AlertState {
  /** Time of the last evaluation. */
  at: number | null;
  /** Tracks by alert key. A healthy subject has no track. */
  tracks: ReadonlyMap<string, Track>;
}

export const NOTHING_WRONG: AlertState = { at: null, tracks: new Map() };

export interface AlertChange {
  type: "fired" | "cleared";
  key: string;
  kind: AlertKind;
  subject: string | null;
  /** Null if the alert cleared because its value no longer exists. */
  reading: Reading | null;
}

export const keyOf = ({ kind, subject }: Pick<Reading, "kind" | "subject">): string =>
  subject === null ? kind : `${kind}:${subject}`;

/**
 * Returns the time that has certainly passed since the last evaluation. The clock can be set, so a negative difference
 * is taken as 0, and a difference is limited to the interval between two evaluations. An alert may therefore be late,
 * but never early.
 */
export const elapsedMs = (
  since: number | null,
  now: number,
  { alertEveryMs }: Pick<Numbers, "alertEveryMs">,
): number => (since === null ? 0 : Math.min(Math.max(0, now - since), alertEveryMs));

/**
 * Decides from the readings of one evaluation which alerts fire and which clear. An alert fires once its value has been
 * above the threshold for the time `forMs` of its rule. It clears once the value has been at or below its clear value
 * for `alertClearForMs`. A value that could not be read neither fires nor clears an alert.
 */
export function evaluate(
  state: AlertState,
  readings: Readings,
  now: number,
  numbers: Numbers,
): { state: AlertState; changes: AlertChange[] } {
  const elapsed = elapsedMs(state.at, now, numbers);
  const tracks = new Map<string, Track>();
  const changes: AlertChange[] = [];
  for (const [key, { kind, subject, reading, before }] of subjectsOf(state, readings)) {
    const value = valueOfReading(readings, kind, reading);
    const after =
      value === null ? before : next(before ?? null, value, elapsed, limitsOf(kind, subject, numbers));
    if (after != null) tracks.set(key, { kind, subject, ...after });
    const wasFiring = before?.stage === "firing";
    const isFiring = after?.stage === "firing";
    if (wasFiring !== isFiring)
      changes.push({ type: isFiring ? "fired" : "cleared", key, kind, subject, reading });
  }
  return { state: { at: now, tracks }, changes };
}

interface Subject {
  kind: AlertKind;
  subject: string | null;
  reading: Reading | null;
  before: Track | undefined;
}

/**
 * Returns the subjects to evaluate, by alert key: one for each reading, and one for each track of the last evaluation
 * that has no reading now.
 */
function subjectsOf({ tracks }: AlertState, readings: Readings): Map<string, Subject> {
  const subjects = new Map<string, Subject>();
  for (const [key, before] of tracks)
    subjects.set(key, { kind: before.kind, subject: before.subject, reading: null, before });
  for (const reading of ALERT_KINDS.flatMap((kind) => readings[kind] ?? [])) {
    const key = keyOf(reading);
    const { kind, subject } = reading;
    subjects.set(key, { kind, subject, reading, before: tracks.get(key) });
  }
  return subjects;
}

/**
 * Returns the value of a subject's reading. If the subject has no reading, the result depends on its kind of alert:
 * null (the value is not known) if the kind could not be read, otherwise minus infinity, because a subject without a
 * reading is then healthy.
 */
function valueOfReading(readings: Readings, kind: AlertKind, reading: Reading | null): number | null {
  if (reading !== null) return reading.value;
  return readings[kind] == null ? null : Number.NEGATIVE_INFINITY;
}

function next(before: Stage | null, value: number, elapsed: number, limits: Limits): Stage | null {
  const { threshold, clearBelow, forMs, clearForMs } = limits;
  if (before?.stage === "firing") {
    if (!(value <= clearBelow)) return { stage: "firing", calmMs: null };
    const calmMs = before.calmMs === null ? 0 : before.calmMs + elapsed;
    return calmMs >= clearForMs ? null : { stage: "firing", calmMs };
  }
  if (!(value > threshold)) return null;
  const ms = before === null ? 0 : before.ms + elapsed;
  return ms >= forMs ? { stage: "firing", calmMs: null } : { stage: "rising", ms };
}
