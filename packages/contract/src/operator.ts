import { type Static, Type } from "typebox";
import { STATUSES } from "./sandbox.ts";
import { Nullable, OneOf, Timestamp } from "./schema.ts";

const Count = Type.Integer({ minimum: 0 });

export const COUNTERS = ["created", "terminated", "failed", "execsStarted", "execsEnded"] as const;
export type Counter = (typeof COUNTERS)[number];

const AUDIT_KINDS = [
  "orphan",
  "absent",
  "lingering",
  "stuck_launch",
  "exhausted",
  "quarantined",
  "unreadable",
  "unknown",
  "older_version",
] as const;
const AUDIT_ACTIONS = ["corrected", "removed", "waits", "left", "failed"] as const;

const Skipped = Type.Object({
  kind: OneOf(["sandbox", "drive"]),
  id: Type.String(),
  name: Type.String(),
  reason: Type.String(),
});

const BACKUP_STATES = ["running", "done", "incomplete", "failed"] as const;

export const Backup = Type.Object(
  {
    state: OneOf(BACKUP_STATES, {
      description:
        "incomplete: the backup can be restored, but lacks the sandboxes and drives in `skipped`; failed: it can't be restored, see `error`",
    }),
    directory: Type.String(),
    startedAt: Timestamp,
    endedAt: Nullable(Timestamp),
    sandboxes: Type.Integer({ minimum: 0, description: "sandboxes copied so far" }),
    drives: Type.Integer({ minimum: 0, description: "drives copied so far" }),
    sizeBytes: Type.Integer({ minimum: 0, description: "bytes that the copies occupy" }),
    skipped: Type.Array(Skipped),
    error: Nullable(Type.String()),
  },
  { $id: "Backup", title: "Backup" },
);
export type Backup = Static<typeof Backup>;

export const CreateBackup = Type.Object(
  {
    directory: Type.String({
      minLength: 1,
      maxLength: 4096,
      description: "absolute path of a directory on the server's machine that does not exist or is empty",
    }),
  },
  { $id: "CreateBackup", title: "CreateBackup", additionalProperties: false },
);
export type CreateBackup = Static<typeof CreateBackup>;

export const AuditFinding = Type.Object({
  kind: OneOf(AUDIT_KINDS, {
    description:
      "orphan: a resource with Holdfast's marker that no record owns; absent: recorded as running but not found; lingering: processes of a sandbox that has none according to its record; stuck_launch: a launch that is no longer in progress; exhausted: all stop attempts failed; quarantined: an unreadable lease; unreadable: an unreadable record; unknown: could not be examined; older_version: runs a keeper of another version",
  }),
  sandboxId: Type.Optional(Type.String()),
  driveId: Type.Optional(
    Type.String({ description: "set if the finding is about a drive instead of a sandbox" }),
  ),
  things: Type.Array(Type.String()),
  action: OneOf(AUDIT_ACTIONS, {
    description:
      "waits: Holdfast acts at `nextAt` if the finding persists; left: left alone on purpose, the message gives the reason",
  }),
  message: Type.String(),
  nextAt: Type.Optional(Timestamp),
});
export type AuditFinding = Static<typeof AuditFinding>;

export const AuditReport = Type.Object(
  {
    at: Timestamp,
    ms: Type.Number(),
    trigger: OneOf(["start", "hourly", "request"]),
    complete: Type.Boolean({
      description: "false if some resources could not be listed; then nothing was removed",
    }),
    records: Count,
    things: Type.Integer({ minimum: 0, description: "resources on the host that carry Holdfast's marker" }),
    findings: Type.Array(AuditFinding),
  },
  { $id: "AuditReport", title: "AuditReport" },
);
export type AuditReport = Static<typeof AuditReport>;

export const SWEEP_LAYERS = ["stale", "age", "pressure", "reconcile"] as const;
export type SweepLayer = (typeof SWEEP_LAYERS)[number];
const SWEEP_RULES = [
  "kept_long_enough",
  "past_ttl",
  "past_idle_ttl",
  "disposable",
  "idle",
  "old_events",
  "old_keys",
  "ended_execs",
] as const;
export type SweepRule = (typeof SWEEP_RULES)[number];

export const SweepItem = Type.Object({
  rule: OneOf(SWEEP_RULES),
  sandboxId: Nullable(Type.String()),
  count: Type.Integer({ minimum: 0, description: "number of things that this item covers" }),
  action: OneOf(["removed", "ordered", "would_remove", "put_to_standby", "would_put_to_standby", "failed"], {
    description:
      "ordered: removal requested, absence not observed yet; put_to_standby: the next call wakes the sandbox",
  }),
  message: Type.String(),
});
export type SweepItem = Static<typeof SweepItem>;

export const SweepReport = Type.Object(
  {
    at: Timestamp,
    ms: Type.Number(),
    layers: Type.Array(OneOf(SWEEP_LAYERS)),
    emergency: Type.Boolean(),
    dryRun: Type.Boolean(),
    removed: Count,
    putToStandby: Count,
    failed: Count,
    items: Type.Array(SweepItem),
  },
  { $id: "SweepReport", title: "SweepReport" },
);
export type SweepReport = Static<typeof SweepReport>;

/** The health of one cleanup layer. It shows early that a layer does not run or fails, before resources pile up. */
export const LayerHealth = Type.Object({
  layer: OneOf(SWEEP_LAYERS),
  everyMs: Count,
  lastAt: Nullable(Timestamp),
  overdue: Type.Boolean(),
  runs: Count,
  failures: Count,
  removed: Count,
  lastError: Nullable(Type.String()),
});
export type LayerHealth = Static<typeof LayerHealth>;

export const Stats = Type.Object(
  {
    at: Timestamp,
    sandboxes: Type.Object(
      Object.fromEntries(STATUSES.map((status) => [status, Count])) as Record<
        (typeof STATUSES)[number],
        typeof Count
      >,
    ),
    totals: Type.Object(
      { created: Count, terminated: Count, failed: Count, execsStarted: Count, execsEnded: Count },
      { description: "stored counters that never decrease" },
    ),
    execsRunning: Count,
    execsQueued: Count,
    links: Type.Object({
      up: Count,
      down: Count,
      lost: Type.Integer({ minimum: 0, description: "links lost since the server started" }),
    }),
    readers: Type.Integer({ minimum: 0, description: "callers currently reading output" }),
    readersCut: Type.Object(
      {
        wedged: Type.Integer({
          minimum: 0,
          description: "readers that accepted no data, or did not respond, for too long",
        }),
        expired: Type.Integer({
          minimum: 0,
          description: "streams that reached the maximum duration; a live reader reconnects",
        }),
      },
      {
        description: "output streams that the server ended before their exec ended, since the server started",
      },
    ),
    orphans: Count,
    lastObservationAt: Nullable(Timestamp),
    lastAuditAt: Nullable(Timestamp),
    sweeps: Type.Array(LayerHealth),
    launches: Type.Object({
      state: OneOf(["open", "suspended", "probing"]),
      waiting: Count,
      failuresInARow: Count,
    }),
    capacity: Nullable(
      Type.Object({
        diskFreeBytes: Count,
        diskTotalBytes: Count,
        memoryFreeBytes: Count,
        memoryTotalBytes: Count,
      }),
    ),
    driver: Type.Object(
      {
        name: Type.String(),
        capabilities: Type.Array(Type.String(), {
          description: "the optional abilities of the driver that work on this host",
        }),
      },
      { description: "the component that runs sandboxes" },
    ),
  },
  { $id: "Stats", title: "Stats" },
);
export type Stats = Static<typeof Stats>;
export const Health = Type.Object(
  {
    status: Type.String(),
    version: Type.String(),
    installation: Type.String(),
    reasons: Type.Array(Type.String()),
  },
  { $id: "Health", title: "Health" },
);
export type Health = Static<typeof Health>;
