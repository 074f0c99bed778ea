import { type Static, Type } from "typebox";
import { Status } from "./sandbox.ts";
import { Nullable, OneOf, Timestamp } from "./schema.ts";

/** The possible findings about a sandbox, most significant first. */
export const FINDINGS = [
  "failed",
  "stopping",
  "files_gone",
  "keeper_gone",
  "frozen",
  "keeper_silent",
  "mount_gone",
  "not_serving",
  "recovering",
  "link_flapping",
  "out_of_memory",
  "disk_full",
  "pid_limit",
  "uninterruptible",
  "deadlock",
  "memory_leak",
  "busy_loop",
  "zombies",
  "waiting_on_io",
  "repeated_timeouts",
  "queue_starved",
  "clock_jump",
  "no_task",
  "starting",
  "asleep",
  "gone",
  "working",
  "idle",
  "unknown",
] as const;
export const FindingKind = OneOf(FINDINGS);
export type FindingKind = Static<typeof FindingKind>;

const CONFIDENCES = ["high", "medium", "low"] as const;
export const Confidence = OneOf(CONFIDENCES, {
  description:
    "high: directly observed; medium: the only explanation that fits the observations; low: other explanations are possible",
});
export type Confidence = Static<typeof Confidence>;

export const Finding = Type.Object({
  kind: FindingKind,
  severity: OneOf(["problem", "notice", "fine"]),
  summary: Type.String({ description: "the finding, in one sentence" }),
  evidence: Type.Array(Type.String(), { description: "the observations behind the finding" }),
  confidence: Confidence,
  holdfast: Type.String({ description: "what Holdfast does about it automatically, and when" }),
  you: Type.Array(Type.String(), { description: "what a person can do" }),
});
export type Finding = Static<typeof Finding>;

export const Diagnosis = Type.Object(
  {
    sandboxId: Type.String(),
    name: Type.String(),
    at: Timestamp,
    windowMs: Type.Integer({
      minimum: 0,
      description: "how long the sandbox was observed for this diagnosis",
    }),
    status: Status,
    summary: Type.String({ description: "the summary of the first finding" }),
    findings: Type.Array(Finding, { minItems: 1, description: "most significant first" }),
    unseen: Type.Array(Type.String(), { description: "what could not be examined, and why" }),
    nextAt: Nullable(
      Type.String({
        format: "date-time",
        description: "when Holdfast takes its next step; null if it takes none",
      }),
    ),
  },
  { $id: "Diagnosis", title: "Diagnosis" },
);
export type Diagnosis = Static<typeof Diagnosis>;
