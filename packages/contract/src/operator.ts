import { type Static, Type } from "typebox";
import { STATUSES } from "./sandbox.ts";
import { Timestamp } from "./schema.ts";

const Count = Type.Integer({ minimum: 0 });

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
    links: Type.Object({ up: Count, down: Count }),
    orphans: Count,
    lastObservationAt: Type.Union([Timestamp, Type.Null()]),
  },
  { $id: "Stats", title: "Stats" },
);
export type Stats = Static<typeof Stats>;
export const COUNTERS = ["created", "terminated", "failed", "execsStarted", "execsEnded"] as const;
export type Counter = (typeof COUNTERS)[number];

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
