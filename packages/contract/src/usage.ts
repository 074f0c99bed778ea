import { type Static, Type } from "typebox";
import { Cause } from "./errors.ts";
import { Status } from "./sandbox.ts";
import { Nullable, OneOf, Timestamp } from "./schema.ts";

const Count = Type.Integer({ minimum: 0 });

/** What a thread waits for, as the kernel reports it. */
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
    "cpu: running or runnable; futex: another thread; pipe, fifo, socket, terminal, file: reading, writing or opening one; lock: a file lock; child: the exit of a child; sleep: a timer; events: poll, select or epoll; disk: the kernel, uninterruptibly; stopped, frozen: being continued or thawed; zombie: being reaped by its parent",
});
export type WaitsOn = Static<typeof WaitsOn>;

export const ThreadWait = Type.Object({
  on: WaitsOn,
  threads: Type.Integer({ minimum: 1, description: "number of threads that wait this way" }),
  bounded: Type.Boolean({ description: "whether the wait ends by itself" }),
  what: Nullable(Type.String({ description: "name of the object waited on, if it has one" })),
});
export type ThreadWait = Static<typeof ThreadWait>;

export const ProcessUsage = Type.Object({
  pid: Type.Integer({ description: "pid inside the sandbox" }),
  parent: Type.Integer(),
  name: Type.String(),
  commandLine: Type.String(),
  state: Type.String({ description: "one letter, as in ps" }),
  threads: Count,
  waits: Type.Array(ThreadWait, {
    description: "what its threads wait for: the first thread's wait, then the others by number of threads",
  }),
  cpuMs: Type.Number({ minimum: 0 }),
  rssBytes: Count,
  execId: Type.String({ description: "id of the exec the process belongs to, or empty" }),
});
export type ProcessUsage = Static<typeof ProcessUsage>;

export const UsageSample = Type.Object({
  at: Timestamp,
  cpuPercent: Type.Number({ minimum: 0, description: "percent of one core, since the previous sample" }),
  memoryBytes: Count,
  processes: Count,
  readBytes: Type.Integer({ minimum: 0, description: "total so far" }),
  writtenBytes: Type.Integer({ minimum: 0, description: "total so far" }),
});
export type UsageSample = Static<typeof UsageSample>;

export const ResourceReport = Type.Object(
  {
    sandboxId: Type.String(),
    at: Timestamp,
    status: Status,
    durationMs: Type.Integer({ minimum: 0, description: "since the sandbox was created" }),
    lastActivityAt: Timestamp,
    operations: Type.Integer({
      minimum: 0,
      description: "execs, file calls, and disk reads and writes of its processes",
    }),
    cpu: Type.Object({
      percent: Type.Number({ minimum: 0, description: "percent of one core, recent average" }),
      totalMs: Type.Number({ minimum: 0 }),
      limitCpus: Type.Number(),
      throttledMs: Type.Number({ minimum: 0, description: "total time throttled by the CPU limit" }),
    }),
    memory: Type.Object({
      bytes: Type.Integer({
        minimum: 0,
        description: "memory of its processes and memory file systems, without caches",
      }),
      limitBytes: Count,
      trendBytesPerMinute: Nullable(
        Type.Number({ description: "slope over the recent history; null if there is too little history" }),
      ),
      oomKills: Type.Integer({
        minimum: 0,
        description: "processes killed by the kernel for lack of memory",
      }),
    }),
    io: Type.Object({ readBytes: Count, writtenBytes: Count, operations: Count }),
    disk: Nullable(
      Type.Object(
        { usedBytes: Count, limitBytes: Count },
        { description: "usage of the sandbox's own file system; null if it was created without diskMb" },
      ),
    ),
    processes: Type.Object({
      count: Type.Integer({ minimum: 0, description: "processes and threads" }),
      limit: Count,
      refused: Type.Integer({ minimum: 0, description: "forks rejected by the limit" }),
      items: Type.Array(ProcessUsage),
      truncated: Type.Boolean(),
    }),
    history: Type.Array(UsageSample, { description: "samples of the last minutes, oldest first" }),
  },
  { $id: "ResourceReport", title: "ResourceReport" },
);
export type ResourceReport = Static<typeof ResourceReport>;

/** One sandbox in the list of all sandboxes, with its last known usage. The list triggers no new measurement. */
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
        description:
          "when the figures below were measured; null, like the figures, if the sandbox has no instance",
      }),
    ),
    cpuPercent: Nullable(Type.Number({ minimum: 0, description: "percent of one core, recent average" })),
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
