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
import { RULES } from "./diagnosis-rules.ts";
import type { Usage } from "./ports.ts";
import type { Signs } from "./signs.ts";
import type { Point } from "./trend.ts";

/** An exec that is under way, as far as a diagnosis needs it. */
export interface ExecFact {
  id: string;
  command: string;
  startedAt: number | null;
  createdAt: number;
  /** When its own timeout ends it; null where it has none. */
  endsBy: number | null;
}

/** All that a diagnosis is made of. Gathered without waking anybody, and without asking anybody inside. */
export interface Facts {
  now: number;
  status: Status;
  cause: Cause | null;
  recovery: Recovery | null;
  keptUntil: number | null;
  /** When the next try at ending it is made, where it is being ended. */
  nextStopAt: number | null;
  restartsOnLoss: boolean;
  since: number;
  labels: Readonly<Record<string, string>>;
  limits: Resources;
  windowMs: number;
  /** At the end of the window; null where it could not be measured. */
  usage: Usage | null;
  cpuPercent: number | null;
  /** Forks that were refused during the window. */
  forksRefused: number;
  /** Memory over the history and the window, oldest first. */
  memory: readonly Point[];
  /** How long every sample of the history has had a core to itself. */
  busyForMs: number;
  signs: Signs | null;
  execs: { running: readonly ExecFact[]; queued: readonly ExecFact[] };
  /** Of the execs that ended lately: how many, and how many of them by their timeout. */
  ended: { count: number; timedOut: number; windowMs: number };
  oom: { kills: number; lastAt: number | null };
  linkLosses: number;
  clockJump: { at: number; byMs: number } | null;
  launches: { suspended: boolean; waiting: number };
  /** Whether the last proof found its disk full. */
  isDiskFull: boolean;
}

export interface Told {
  summary: string;
  evidence: string[];
  confidence: Confidence;
  holdfast: string;
  you: string[];
}

/** One thing that can be the matter: null where it isn't. */
export interface Rule {
  kind: FindingKind;
  severity: Finding["severity"];
  look(facts: Facts): Told | null;
}

const ORDER: Record<Finding["severity"], number> = { problem: 0, notice: 1, fine: 2 };

/**
 * What is the matter, from facts alone. The rules are asked one by one, and every one that applies is told, the most telling
 * first: what a person on call reads is the first sentence. Where nothing fits it says that it does not know, which is an
 * answer too. It decides nothing: what is done about a sandbox follows from evidence of not serving, never from this.
 */
export function diagnose(
  facts: Facts,
  about: { sandboxId: string; name: string; unseen: readonly string[] },
): Diagnosis {
  const named = namesIn(facts, about.name);
  const findings = RULES.flatMap(({ kind, severity, look }): Finding[] => {
    const told = look(facts);
    return told === null ? [] : [{ kind, severity, ...told, you: told.you.map(named) }];
  });
  // What is fine is only said where nothing is wrong.
  const isTroubled = findings.some(({ severity }) => severity === "problem");
  const told = findings
    .filter(({ severity }) => severity !== "fine" || !isTroubled)
    .sort((a, b) => ORDER[a.severity] - ORDER[b.severity]);
  // Nothing is wrong but a label: then what it does is what to read first.
  const [first] = told;
  const fine = told.filter(({ severity }) => severity === "fine");
  const ordered =
    first?.severity === "notice" && isAside(first.kind)
      ? [...fine, ...told.filter((one) => !fine.includes(one))]
      : told;
  const all = ordered.length > 0 ? ordered : [unknown(facts, about.name)];
  return {
    ...about,
    unseen: [...about.unseen],
    at: new Date(facts.now).toISOString(),
    windowMs: facts.windowMs,
    status: facts.status,
    summary: all[0]?.summary ?? "",
    findings: all,
    nextAt:
      facts.recovery?.nextAt ?? (facts.nextStopAt === null ? null : new Date(facts.nextStopAt).toISOString()),
  };
}

/** So that a command can be taken as it stands. */
const namesIn =
  ({ execs: { running } }: Facts, name: string) =>
  (text: string) =>
    text
      .replaceAll("NAME", name)
      .replaceAll("EXEC", running.length === 1 ? (running[0]?.id ?? "EXEC") : "EXEC");

const isAside = (kind: FindingKind): boolean => kind === "no_task" || kind === "clock_jump";

function unknown({ signs, usage, windowMs }: Facts, name: string): Finding {
  const seen = signs === null ? "its processes could not be looked at" : `${signs.now.length} processes`;
  return {
    kind: "unknown",
    severity: "notice",
    summary: "It serves, and what it does fits nothing known here: this does not know whether that is well.",
    evidence: [
      `Seen for ${windowMs} ms: ${seen}${usage === null ? "" : `, ${usage.processes} processes and threads counted`}.`,
    ],
    confidence: "low",
    holdfast: "Nothing: it serves, and a command may do what it likes for as long as it likes.",
    you: [
      `Look for longer: 'holdfast diagnose --window 10s ${name}'.`,
      `See what it prints: 'holdfast logs ${name}'.`,
    ],
  };
}
