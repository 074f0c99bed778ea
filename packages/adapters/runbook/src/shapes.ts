/**
 * Converts Holdfast's records to the shapes of a runbook: flat, without an envelope, in snake_case. They contain a
 * subset of `/v1`.
 */
import { type Static, Type } from "@fastify/type-provider-typebox";
import {
  Nullable,
  OneOf,
  type ResourceReport,
  type Sandbox,
  type Stats,
  type Status,
  type SweepReport,
  Timestamp,
} from "@holdfast/contract";

const Count = Type.Integer({ minimum: 0 });

export const RunbookStats = Type.Object(
  {
    active: Type.Integer({ minimum: 0, description: "ready, degraded, paused, suspending or waking" }),
    provisioning: Type.Integer({ minimum: 0, description: "queued or creating" }),
    terminating: Type.Integer({ minimum: 0, description: "stopping: absence has not been observed yet" }),
    total_created: Type.Integer({ minimum: 0, description: "all sandboxes ever accepted; never decreases" }),
    total_destroyed: Type.Integer({
      minimum: 0,
      description: "deletes whose absence was observed; never decreases",
    }),
  },
  {
    $id: "RunbookStats",
    title: "RunbookStats",
    description:
      "sandboxes in standby and failed sandboxes are not counted in `active`, `provisioning` or `terminating`",
  },
);
export type RunbookStats = Static<typeof RunbookStats>;

const STATUSES = ["provisioning", "running", "standby", "terminating", "failed"] as const;
type RunbookStatus = (typeof STATUSES)[number];

/** The runbook's state for each status. A `terminated` sandbox is not listed. */
const STATUS: Readonly<Record<Exclude<Status, "terminated">, RunbookStatus>> = {
  queued: "provisioning",
  creating: "provisioning",
  ready: "running",
  degraded: "running",
  paused: "running",
  suspending: "running",
  waking: "running",
  standby: "standby",
  stopping: "terminating",
  failed: "failed",
};

export const RunbookSandbox = Type.Object(
  {
    id: Type.String(),
    status: OneOf(STATUSES),
    created_at: Timestamp,
    age_minutes: Type.Number({ minimum: 0, description: "age in minutes, rounded to two decimals" }),
    agent_type: Nullable(Type.String({ description: "the label `agent_type`" })),
    task_id: Nullable(Type.String({ description: "the label `task_id`" })),
  },
  { $id: "RunbookSandbox", title: "RunbookSandbox" },
);
export type RunbookSandbox = Static<typeof RunbookSandbox>;

export const RunbookList = Type.Array(RunbookSandbox, { description: "All live sandboxes, oldest first." });

export const RunbookLogs = Type.Object(
  {
    id: Type.String(),
    last_activity_at: Timestamp,
    lines: Type.Array(
      Type.Object({
        at: Timestamp,
        kind: OneOf(["event", "stdout", "stderr"]),
        text: Type.String(),
        exec_id: Nullable(Type.String({ description: "the exec that the line is about or that wrote it" })),
      }),
      { description: "the latest events and output lines, oldest first" },
    ),
  },
  { $id: "RunbookLogs", title: "RunbookLogs" },
);
export type RunbookLogs = Static<typeof RunbookLogs>;

export const RunbookResources = Type.Object(
  {
    cpu_percent: Type.Number({ minimum: 0, description: "recent CPU usage in percent of one core" }),
    memory_mb: Type.Number({ minimum: 0, description: "memory of the sandbox's processes, without caches" }),
    duration_ms: Type.Integer({ minimum: 0, description: "time since creation" }),
    operations: Type.Integer({
      minimum: 0,
      description: "number of execs, file calls, and reads and writes that reached a disk",
    }),
  },
  {
    $id: "RunbookResources",
    title: "RunbookResources",
    description: "all zero if the sandbox has no running processes",
  },
);
export type RunbookResources = Static<typeof RunbookResources>;

export const RunbookDeleted = Type.Object(
  {
    id: Type.String(),
    status: OneOf(["terminated", "terminating"], {
      description:
        "terminated: absence was observed; terminating: Holdfast keeps stopping it in the background",
    }),
    attempts: Type.Integer({ minimum: 0, description: "failed attempts to stop it so far" }),
    next_attempt_at: Nullable(Timestamp),
    last_error: Nullable(Type.String()),
  },
  { $id: "RunbookDeleted", title: "RunbookDeleted" },
);
export type RunbookDeleted = Static<typeof RunbookDeleted>;

export const RunbookCleanup = Type.Object(
  {
    emergency: Type.Boolean(),
    dry_run: Type.Boolean(),
    removed: Type.Integer({
      minimum: 0,
      description: "deleted sandboxes, and deleted records past their retention",
    }),
    put_to_standby: Count,
    terminating: Type.Integer({
      minimum: 0,
      description: "sandboxes being deleted whose absence has not been observed yet",
    }),
    failed: Count,
    duration_ms: Type.Number({ minimum: 0 }),
    items: Type.Array(
      Type.Object({
        id: Nullable(Type.String({ description: "id of the sandbox; null if the item is about records" })),
        action: Type.String(),
        rule: Type.String({ description: "the rule that caused the action" }),
        count: Count,
        message: Type.String(),
      }),
    ),
  },
  { $id: "RunbookCleanup", title: "RunbookCleanup" },
);
export type RunbookCleanup = Static<typeof RunbookCleanup>;

export function statsShape({ sandboxes, totals }: Stats): RunbookStats {
  const counted = { provisioning: 0, running: 0, standby: 0, terminating: 0, failed: 0 };
  for (const [status, name] of Object.entries(STATUS) as [keyof typeof STATUS, RunbookStatus][])
    counted[name] += sandboxes[status];
  return {
    active: counted.running,
    provisioning: counted.provisioning,
    terminating: counted.terminating,
    total_created: totals.created,
    total_destroyed: totals.terminated,
  };
}

/** Converts a sandbox; null if it no longer exists. */
export function sandboxShape(sandbox: Sandbox, now: number): RunbookSandbox | null {
  const { id, status, createdAt, labels } = sandbox;
  if (status === "terminated") return null;
  const ageMs = Math.max(0, now - Date.parse(createdAt));
  return {
    id,
    status: STATUS[status],
    created_at: createdAt,
    age_minutes: hundredths(ageMs / 60_000),
    agent_type: labels.agent_type ?? null,
    task_id: labels.task_id ?? null,
  };
}

export const resourcesShape = ({
  cpu,
  memory,
  durationMs,
  operations,
}: ResourceReport): RunbookResources => ({
  cpu_percent: hundredths(cpu.percent),
  memory_mb: hundredths(memory.bytes / 1_048_576),
  duration_ms: durationMs,
  operations,
});

export const deletedShape = ({ id, status, lease }: Sandbox): RunbookDeleted => ({
  id,
  status: status === "terminated" ? "terminated" : "terminating",
  attempts: lease.attempts ?? 0,
  next_attempt_at: lease.nextAttemptAt ?? null,
  last_error: lease.lastError ?? null,
});

export function cleanupShape({
  emergency,
  dryRun,
  removed,
  putToStandby,
  failed,
  ms,
  items,
}: SweepReport): RunbookCleanup {
  return {
    ...{ emergency, dry_run: dryRun, removed, put_to_standby: putToStandby },
    terminating: items.filter(({ action }) => action === "ordered").length,
    ...{ failed, duration_ms: ms },
    items: items.map(({ sandboxId: id, action, rule, count, message }) => ({
      id,
      action,
      rule,
      count,
      message,
    })),
  };
}

const hundredths = (value: number): number => Math.round(value * 100) / 100;
