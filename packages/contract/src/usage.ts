import { type Static, Type } from "typebox";
import { Cause } from "./errors.ts";
import { Status } from "./sandbox.ts";
import { Nullable, OneOf, Timestamp } from "./schema.ts";

const Count = Type.Integer({ minimum: 0 });

/** What a thread waits for, as the kernel tells it. */
export const WAITS = [
  "cpu",
  "futex",
  "pipe",
  "fifo",
  "socket",
  "terminal",
  "file",
  "lock",
  "child",
  "sleep",
  "events",
  "disk",
  "stopped",
  "frozen",
  "zombie",
  "unknown",
] as const;
export const WaitsOn = OneOf(WAITS, {
  description:
    "cpu: nothing, it runs or could; futex: another thread; pipe, fifo, socket, terminal, file: to read, write or open one; lock: a file's lock; child: the end of a child; sleep: time; events: poll, select or epoll; disk: the kernel, without being interruptible; stopped, frozen: being let go on; zombie: its parent, which has not asked how it ended",
});
export type WaitsOn = Static<typeof WaitsOn>;

export const ThreadWait = Type.Object({
  on: WaitsOn,
  threads: Type.Integer({ minimum: 1, description: "how many wait so" }),
  bounded: Type.Boolean({ description: "whether the wait ends by itself" }),
  what: Nullable(Type.String({ description: "what is waited on, where it has a name" })),
});
export type ThreadWait = Static<typeof ThreadWait>;

export const ProcessUsage = Type.Object({
  pid: Type.Integer({ description: "as seen inside" }),
  parent: Type.Integer(),
  name: Type.String(),
  commandLine: Type.String(),
  state: Type.String({ description: "one letter, as in ps" }),
  threads: Count,
  waits: Type.Array(ThreadWait, {
    description: "what its threads wait for: its first thread first, then most of them",
  }),
  cpuMs: Type.Number({ minimum: 0 }),
  rssBytes: Count,
  execId: Type.String({ description: "the exec it belongs to, or empty" }),
});
export type ProcessUsage = Static<typeof ProcessUsage>;

export const UsageSample = Type.Object({
  at: Timestamp,
  cpuPercent: Type.Number({ minimum: 0, description: "of one core, since the sample before" }),
  memoryBytes: Count,
  processes: Count,
  readBytes: Type.Integer({ minimum: 0, description: "in all" }),
  writtenBytes: Type.Integer({ minimum: 0, description: "in all" }),
});
export type UsageSample = Static<typeof UsageSample>;

export const ResourceReport = Type.Object(
  {
    sandboxId: Type.String(),
    at: Timestamp,
    status: Status,
    durationMs: Type.Integer({ minimum: 0, description: "since it was created" }),
    lastActivityAt: Timestamp,
    operations: Type.Integer({
      minimum: 0,
      description: "execs, calls on files, and reads and writes of its processes that reached a disk",
    }),
    cpu: Type.Object({
      percent: Type.Number({ minimum: 0, description: "of one core, lately" }),
      totalMs: Type.Number({ minimum: 0 }),
      limitCpus: Type.Number(),
      throttledMs: Type.Number({ minimum: 0, description: "held back by its limit, in all" }),
    }),
    memory: Type.Object({
      bytes: Type.Integer({
        minimum: 0,
        description: "of its processes and memory file systems; caches aside",
      }),
      limitBytes: Count,
      trendBytesPerMinute: Nullable(
        Type.Number({ description: "of the short history; null where there is too little of it" }),
      ),
      oomKills: Type.Integer({ minimum: 0, description: "processes that the kernel killed for it" }),
    }),
    io: Type.Object({ readBytes: Count, writtenBytes: Count, operations: Count }),
    disk: Nullable(
      Type.Object(
        { usedBytes: Count, limitBytes: Count },
        { description: "of its own file system; null where it was made without diskMb" },
      ),
    ),
    processes: Type.Object({
      count: Type.Integer({ minimum: 0, description: "processes and threads" }),
      limit: Count,
      refused: Type.Integer({ minimum: 0, description: "forks that the limit refused" }),
      items: Type.Array(ProcessUsage),
      truncated: Type.Boolean(),
    }),
    history: Type.Array(UsageSample, { description: "oldest first, of the last minutes" }),
  },
  { $id: "ResourceReport", title: "ResourceReport" },
);
export type ResourceReport = Static<typeof ResourceReport>;

/** One sandbox among all of them: what is known of it without looking again. */
export const UsageSummary = Type.Object(
  {
    sandboxId: Type.String(),
    name: Type.String(),
    status: Status,
    cause: Nullable(Cause),
    createdAt: Timestamp,
    lastActivityAt: Timestamp,
    operations: Type.Integer({ minimum: 0, description: "as in its ResourceReport" }),
    measuredAt: Nullable(
      Type.String({
        format: "date-time",
        description: "when the figures below were taken; null, as they are, where it has no instance",
      }),
    ),
    cpuPercent: Nullable(Type.Number({ minimum: 0, description: "of one core, lately" })),
    memoryBytes: Nullable(Count),
    memoryLimitBytes: Count,
    processes: Nullable(Type.Integer({ minimum: 0, description: "processes and threads" })),
    processLimit: Count,
  },
  { $id: "UsageSummary", title: "UsageSummary" },
);
export type UsageSummary = Static<typeof UsageSummary>;

export const UsageList = Type.Object(
  { at: Timestamp, items: Type.Array(UsageSummary) },
  { $id: "UsageList", title: "UsageList" },
);
export type UsageList = Static<typeof UsageList>;
