import {
  ALERT_KINDS,
  type AlertKind,
  type AlertUnit,
  type Numbers,
  type SandboxId,
  type Severity,
  SWEEP_LAYERS,
  type SweepLayer,
} from "@holdfast/contract";

/** A figure at one moment, with what it says to a person. */
export interface Reading {
  kind: AlertKind;
  /** Which of several things of the kind: a sandbox, a layer of cleaning, a resource. Null where there is one only. */
  subject: string | null;
  sandboxId: SandboxId | null;
  /** Null where it could not be read, from which nothing follows. */
  value: number | null;
  message: string;
}

/** By kind. What is not listed of a kind that was read is well; a kind that is null or missing could not be read. */
export type Readings = Readonly<Partial<Record<AlertKind, readonly Reading[] | null>>>;

type Figure = (numbers: Numbers, subject: string | null) => number;

export interface Rule {
  severity: Severity;
  unit: AlertUnit;
  /** It fires above this, and clears at or below the other. */
  threshold: Figure;
  clear: Figure;
  /** What it should be in good times. */
  target: Figure | null;
  /** How long it must be past its threshold to fire. */
  forMs: Figure;
  /** Said when it clears because there is no figure any more. */
  calm: string;
}

const none: Figure = () => 0;
const usualFor: Figure = ({ alertForMs }) => alertForMs;

/** Anything above nothing is too much. */
const ANY = { unit: "count", threshold: none, clear: none, target: none, forMs: usualFor } as const;

/** How often a layer of cleaning is due. */
const PACES: Readonly<Record<SweepLayer, Figure>> = {
  stale: ({ sweepStaleMs }) => sweepStaleMs,
  age: ({ sweepAgeMs }) => sweepAgeMs,
  pressure: ({ sweepPressureMs }) => sweepPressureMs,
  reconcile: ({ auditEveryMs }) => auditEveryMs,
};
const paceOf: Figure = (numbers, subject) =>
  SWEEP_LAYERS.reduce((ms, layer) => (layer === subject ? PACES[layer](numbers, layer) : ms), 0);

/** Of what has a pace: so many rounds without one, and as much as the evaluation itself may be late by. */
const overdue = (pace: Figure) =>
  ({
    unit: "ms",
    threshold: (numbers, subject) =>
      numbers.alertLateRounds * pace(numbers, subject) + 2 * numbers.alertEveryMs,
    clear: (numbers, subject) => pace(numbers, subject) + 2 * numbers.alertEveryMs,
    target: pace,
    forMs: usualFor,
  }) as const satisfies Partial<Rule>;

/** What there are alerts about. Thresholds come from the numbers, and from nowhere else. */
export const RULES: Readonly<Record<AlertKind, Rule>> = {
  timeout_rate: {
    severity: "warning",
    unit: "percent",
    threshold: ({ alertTimeoutPercent }) => alertTimeoutPercent,
    clear: ({ clearTimeoutPercent }) => clearTimeoutPercent,
    target: ({ targetTimeoutPercent }) => targetTimeoutPercent,
    forMs: usualFor,
    calm: "Too few execs ended lately to say how many time out.",
  },
  too_many_active: {
    severity: "warning",
    unit: "count",
    threshold: ({ alertActive }) => alertActive,
    clear: ({ clearActive }) => clearActive,
    target: ({ targetActive }) => targetActive,
    forMs: usualFor,
    calm: "No sandbox is active.",
  },
  active_escalation: {
    severity: "critical",
    unit: "count",
    threshold: ({ alertEscalationActive }) => alertEscalationActive,
    clear: ({ clearEscalationActive }) => clearEscalationActive,
    target: ({ targetActive }) => targetActive,
    forMs: ({ alertEscalationForMs }) => alertEscalationForMs,
    calm: "No sandbox is active.",
  },
  running_long: { ...ANY, severity: "info", target: null, calm: "No sandbox has been awake for long." },
  stuck: {
    severity: "warning",
    unit: "ms",
    threshold: ({ alertStuckMs }) => alertStuckMs,
    clear: ({ alertStuckMs }) => alertStuckMs,
    target: null,
    // The time is what is measured.
    forMs: none,
    calm: "It is not stuck any more.",
  },
  repeated_timeouts: {
    severity: "warning",
    unit: "count",
    threshold: ({ alertRepeatedTimeouts }) => alertRepeatedTimeouts,
    clear: ({ clearRepeatedTimeouts }) => clearRepeatedTimeouts,
    target: none,
    forMs: usualFor,
    calm: "No exec of it timed out lately.",
  },
  leak: { ...ANY, severity: "critical", calm: "Nothing is left that no record owns." },
  cleanup_not_running: {
    ...overdue(paceOf),
    severity: "critical",
    calm: "It runs again.",
  },
  cleanup_failing: { ...ANY, severity: "warning", calm: "It does not fail any more." },
  audit_overdue: {
    ...overdue(({ auditEveryMs }) => auditEveryMs),
    severity: "critical",
    calm: "An audit was made.",
  },
  audit_incomplete: { ...ANY, severity: "warning", calm: "The last audit saw everything." },
  observation_overdue: {
    ...overdue(({ observeEveryMs }) => observeEveryMs),
    severity: "critical",
    calm: "Instances are observed again.",
  },
  sandbox_failed: { ...ANY, severity: "warning", calm: "It was restarted, or is gone." },
  lease_exhausted: { ...ANY, severity: "critical", calm: "Its absence was observed, or it is gone." },
  lease_quarantined: { ...ANY, severity: "critical", calm: "It can be read again, or is gone." },
  capacity: {
    severity: "warning",
    unit: "percent",
    threshold: ({ alertCapacityPercent }) => alertCapacityPercent,
    clear: ({ clearCapacityPercent }) => clearCapacityPercent,
    target: null,
    forMs: usualFor,
    calm: "There is room again.",
  },
  capacity_unmeasured: { ...ANY, severity: "critical", calm: "The host is measured again." },
  launches_suspended: { ...ANY, severity: "critical", calm: "Launches work again." },
  delivery_failing: { ...ANY, severity: "warning", calm: "No delivery is dead." },
};

export interface Limits {
  threshold: number;
  clearBelow: number;
  target: number | null;
  forMs: number;
  clearForMs: number;
}

/** A clear value above the threshold would make it fire and clear in turns: the threshold counts then. */
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
  /** `calmMs`: for how long it has been back; null while it is not. */
  | { stage: "firing"; calmMs: number | null };

/** What is remembered of a figure that is past its threshold, or was. */
export type Track = { kind: AlertKind; subject: string | null } & Stage;

export interface AlertState {
  /** Of the last evaluation. */
  at: number | null;
  /** By key. Of what is well there is none. */
  tracks: ReadonlyMap<string, Track>;
}

export const NOTHING_WRONG: AlertState = { at: null, tracks: new Map() };

export interface AlertChange {
  type: "fired" | "cleared";
  key: string;
  kind: AlertKind;
  subject: string | null;
  /** Null where it cleared because there is no figure any more. */
  reading: Reading | null;
}

export const keyOf = ({ kind, subject }: Pick<Reading, "kind" | "subject">): string =>
  subject === null ? kind : `${kind}:${subject}`;

/**
 * What has surely passed since the last evaluation. The time of day can be set: back counts as nothing, and ahead as no more
 * than the pause between two rounds, which is never shorter. So an alert may come late, and never early.
 */
export const livedMs = (
  since: number | null,
  now: number,
  { alertEveryMs }: Pick<Numbers, "alertEveryMs">,
): number => (since === null ? 0 : Math.min(Math.max(0, now - since), alertEveryMs));

/**
 * Which alerts fire and which clear, from the figures of one moment. A figure fires once it has been above its threshold
 * for as long as its rule says, and clears once it has been at or below its clear value for a while; in between nothing
 * changes. What could not be read changes nothing either: not knowing is no reason to fire, and none to clear.
 */
export function evaluate(
  state: AlertState,
  readings: Readings,
  now: number,
  numbers: Numbers,
): { state: AlertState; changes: AlertChange[] } {
  const lived = livedMs(state.at, now, numbers);
  const tracks = new Map<string, Track>();
  const changes: AlertChange[] = [];
  for (const [key, { kind, subject, reading, before }] of subjectsOf(state, readings)) {
    const value = figureOf(readings, kind, reading);
    const after =
      value === null ? before : next(before ?? null, value, lived, limitsOf(kind, subject, numbers));
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

/** All that is read now, or was past its threshold before. */
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

/** Null where nothing is known; what is not listed of a kind that was read is well. */
function figureOf(readings: Readings, kind: AlertKind, reading: Reading | null): number | null {
  if (reading !== null) return reading.value;
  return readings[kind] == null ? null : Number.NEGATIVE_INFINITY;
}

function next(before: Stage | null, value: number, lived: number, limits: Limits): Stage | null {
  const { threshold, clearBelow, forMs, clearForMs } = limits;
  if (before?.stage === "firing") {
    if (!(value <= clearBelow)) return { stage: "firing", calmMs: null };
    const calmMs = before.calmMs === null ? 0 : before.calmMs + lived;
    return calmMs >= clearForMs ? null : { stage: "firing", calmMs };
  }
  if (!(value > threshold)) return null;
  const ms = before === null ? 0 : before.ms + lived;
  return ms >= forMs ? { stage: "firing", calmMs: null } : { stage: "rising", ms };
}
