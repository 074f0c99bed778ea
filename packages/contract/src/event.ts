import { type Static, Type } from "typebox";
import { List, Nullable, OneOf, Timestamp } from "./schema.ts";

export const EVENT_TYPES = [
  "sandbox.created",
  "sandbox.launched",
  "sandbox.ready",
  "sandbox.degraded",
  "sandbox.recovered",
  "sandbox.failed",
  "sandbox.deleting",
  "sandbox.terminated",
  "sandbox.oom",
  "sandbox.adopted",
  "lease.stop_needed",
  "lease.stopping",
  "lease.stop_failed",
  "lease.exhausted",
  "lease.released",
  "lease.quarantined",
  "exec.started",
  "exec.ended",
  "execs.forgotten",
  "link.lost",
  "link.restored",
  "sandbox.restarting",
  "sandbox.paused",
  "sandbox.resumed",
  "sandbox.suspending",
  "sandbox.standby",
  "sandbox.standby_failed",
  "sandbox.waking",
  "sandbox.woke",
  "sandbox.wake_failed",
  "sandbox.memory_lost",
  "sandbox.saving",
  "sandbox.checkpointed",
  "sandbox.checkpoint_failed",
  "checkpoint.removed",
  "exec.woken",
  "launches.suspended",
  "launches.resumed",
  "audit.done",
  "sweep.done",
  "disk.low",
  "disk.recovered",
  "sandbox.frozen",
  "orphan.found",
  "orphan.removed",
  "image.imported",
  "image.removed",
  "server.started",
  "server.stopped",
] as const;
export const EventType = OneOf(EVENT_TYPES);
export type EventType = Static<typeof EventType>;

export const Event = Type.Object(
  {
    seq: Type.Integer({ description: "grows by at least one with every event" }),
    at: Timestamp,
    type: EventType,
    sandboxId: Nullable(Type.String()),
    execId: Nullable(Type.String()),
    generation: Nullable(Type.Integer()),
    message: Type.String(),
    data: Type.Record(Type.String(), Type.Unknown()),
  },
  { $id: "Event", title: "Event" },
);
export type Event = Static<typeof Event>;

export const EventList = List(Event, "EventList");
export type EventList = Static<typeof EventList>;
