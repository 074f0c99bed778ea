import type {
  Cause,
  Confidence,
  Diagnosis,
  Finding,
  FindingKind,
  Recovery,
  Resources,
  Status,
} from "@holdfast/contract";
import { iso } from "../lib/format.ts";
import type { FilesLeft } from "../model/status.ts";
import type { Usage } from "../ports/index.ts";
import type { Point } from "./linear-fit.ts";
import type { ActivityWindow } from "./process-activity.ts";
import { RULES } from "./rules.ts";

/** The fields of an open exec that a diagnosis uses. */
export interface ExecFact {
  id: string;
  command: string;
  startedAt: number | null;
  createdAt: number;
  /** The time at which the exec's own timeout ends it; null if it has none. */
  endsBy: number | null;
}

/** The input of a diagnosis. Collected from outside: no sandbox is woken, and no process inside is asked. */
export interface Facts {
  now: number;
  status: Status;
  cause: Cause | null;
  recovery: Recovery | null;
  keptUntil: number | null;
  /** Whether the files of a failed sandbox still exist, as far as is known. */
  filesLeft: FilesLeft;
  /** Time of the next attempt to stop the sandbox, if it is being deleted. */
  nextStopAt: number | null;
  restartsOnLoss: boolean;
  since: number;
  labels: Readonly<Record<string, string>>;
  /** Labels that every sandbox of this server should have. */
  expectedLabels: readonly string[];
  limits: Resources;
  windowMs: number;
  /** Usage at the end of the window; null if it could not be measured. */
  usage: Usage | null;
  cpuPercent: number | null;
  /** How many forks (process creations) the kernel refused during the window. */
  forksRefused: number;
  /** Memory usage in the history and the window, oldest first. */
  memory: readonly Point[];
  /** How long, up to now, the sandbox has used nearly a full core in every sample. */
  busyForMs: number;
  activity: ActivityWindow | null;
  execs: { running: readonly ExecFact[]; queued: readonly ExecFact[] };
  /** Execs that ended within `windowMs`: how many, and how many of them by their timeout. */
  ended: { count: number; timedOut: number; windowMs: number };
  oom: { kills: number; lastAt: number | null };
  linkLosses: number;
  clockJump: { at: number; byMs: number } | null;
  launches: { suspended: boolean; waiting: number };
  /** Whether the last proof found the sandbox's disk full. */
  isDiskFull: boolean;
}

/**
 * The text of a finding. `holdfast` says what Holdfast does, and `you` what a person can do. In `you`, the placeholders
 * `NAME` and `EXEC` are replaced by the sandbox's name and the id of its only running exec.
 */
export interface FindingText {
  summary: string;
  evidence: string[];
  confidence: Confidence;
  holdfast: string;
  you: string[];
}

/** Recognises one condition. `evaluate` returns null if the condition does not apply. */
export interface Rule {
  kind: FindingKind;
  severity: Finding["severity"];
  evaluate(facts: Facts): FindingText | null;
}

const SEVERITY_RANK: Record<Finding["severity"], number> = { problem: 0, notice: 1, fine: 2 };

/**
 * Computes a diagnosis from facts alone. Every rule that applies contributes a finding. The most telling finding comes
 * first, because a person on call reads the first sentence. If no rule applies, the diagnosis says that the state is
 * unknown. A diagnosis triggers no action: healing requires evidence that a sandbox does not serve.
 */
export function diagnose(
  facts: Facts,
  about: { sandboxId: string; name: string; unseen: readonly string[] },
): Diagnosis {
  const fillIn = fillPlaceholders(facts, about.name);
  const findings = RULES.flatMap(({ kind, severity, evaluate }): Finding[] => {
    const text = evaluate(facts);
    return text === null ? [] : [{ kind, severity, ...text, you: text.you.map(fillIn) }];
  });
  // Findings of severity `fine` are reported only if there is no problem.
  const isTroubled = findings.some(({ severity }) => severity === "problem");
  const reported = findings
    .filter(({ severity }) => severity !== "fine" || !isTroubled)
    .sort((a, b) => SEVERITY_RANK[a.severity] - SEVERITY_RANK[b.severity]);
  // If the first finding is a minor notice, such as a missing label, the finding about the sandbox's activity is put
  // first.
  const [first] = reported;
  const fine = reported.filter(({ severity }) => severity === "fine");
  const ordered =
    first?.severity === "notice" && isSideNote(first.kind)
      ? [...fine, ...reported.filter((one) => !fine.includes(one))]
      : reported;
  const all = ordered.length > 0 ? ordered : [unknown(facts, about.name)];
  return {
    ...about,
    unseen: [...about.unseen],
    at: iso(facts.now),
    windowMs: facts.windowMs,
    status: facts.status,
    summary: all[0]?.summary ?? "",
    findings: all,
    nextAt: facts.recovery?.nextAt ?? (facts.nextStopAt === null ? null : iso(facts.nextStopAt)),
  };
}

/** Replaces the placeholders, so that a suggested command can be copied and run. */
const fillPlaceholders =
  ({ execs: { running } }: Facts, name: string) =>
  (text: string) =>
    text
      .replaceAll("NAME", name)
      .replaceAll("EXEC", running.length === 1 ? (running[0]?.id ?? "EXEC") : "EXEC");

const isSideNote = (kind: FindingKind): boolean => kind === "no_task" || kind === "clock_jump";

function unknown({ activity, usage, windowMs }: Facts, name: string): Finding {
  const seen =
    activity === null ? "its processes could not be inspected" : `${activity.now.length} processes`;
  return {
    kind: "unknown",
    severity: "notice",
    summary:
      "The sandbox is serving, but its activity matches no known pattern; it may or may not be healthy.",
    evidence: [
      `Observed for ${windowMs} ms: ${seen}${usage === null ? "" : `, ${usage.processes} processes and threads counted`}.`,
    ],
    confidence: "low",
    holdfast: "Nothing: the sandbox is serving, and commands may run for as long as they need.",
    you: [
      `Observe it for longer: 'holdfast diagnose --window 10s ${name}'.`,
      `See what it prints: 'holdfast logs ${name}'.`,
    ],
  };
}
