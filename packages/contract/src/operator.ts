import { type Static, Type } from "typebox";
import { STATUSES } from "./sandbox.ts";
import { Nullable, OneOf, Timestamp } from "./schema.ts";

const Count = Type.Integer({ minimum: 0 });

export const COUNTERS = ["created", "terminated", "failed", "execsStarted", "execsEnded"] as const;
export type Counter = (typeof COUNTERS)[number];

export const AUDIT_KINDS = [
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
export const AUDIT_ACTIONS = ["corrected", "removed", "waits", "left", "failed"] as const;

export const AuditFinding = Type.Object({
  kind: OneOf(AUDIT_KINDS, {
    description:
      "orphan: carries our marker and no record owns it; absent: recorded as running and not there; lingering: processes of a sandbox that has none by its record; stuck_launch: a launch that nobody works on; exhausted: stop attempts are used up; quarantined: a lease that can't be read; unreadable: a record that can't be read; unknown: could not be looked at; older_version: runs a keeper of another version",
  }),
  sandboxId: Type.Optional(Type.String()),
  driveId: Type.Optional(Type.String({ description: "where it is about a drive and not a sandbox" })),
  things: Type.Array(Type.String()),
  action: OneOf(AUDIT_ACTIONS, {
    description: "waits: acted upon at `nextAt` if it is still so; left: on purpose, the message says why",
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
      description: "false where something could not be listed; then nothing was removed",
    }),
    records: Count,
    things: Type.Integer({ minimum: 0, description: "physical things that carry our marker" }),
    findings: Type.Array(AuditFinding),
  },
  { $id: "AuditReport", title: "AuditReport" },
);
export type AuditReport = Static<typeof AuditReport>;

export const SWEEP_LAYERS = ["stale", "age", "pressure", "reconcile"] as const;
export type SweepLayer = (typeof SWEEP_LAYERS)[number];
export const SWEEP_RULES = [
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
  count: Type.Integer({ minimum: 0, description: "how many things it stands for" }),
  action: OneOf(["removed", "ordered", "would_remove", "put_to_standby", "would_put_to_standby", "failed"], {
    description: "ordered: being removed, absence not observed yet; put_to_standby: the next call wakes it",
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

/** A layer watches itself: one that doesn't run, or fails, is seen here before anything piles up. */
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
      { description: "stored counters that never go down" },
    ),
    execsRunning: Count,
    execsQueued: Count,
    links: Type.Object({
      up: Count,
      down: Count,
      lost: Type.Integer({ minimum: 0, description: "links given up since the server started" }),
    }),
    readers: Type.Integer({ minimum: 0, description: "callers that read output right now" }),
    readersCut: Type.Object(
      {
        wedged: Type.Integer({ minimum: 0, description: "took nothing, or answered nothing, for too long" }),
        expired: Type.Integer({
          minimum: 0,
          description: "had lasted as long as a stream may; a reader that is there comes back",
        }),
      },
      { description: "streams of output that were ended before their exec, since the server started" },
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
