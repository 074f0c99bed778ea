import type { FindingKind, ThreadWait, WaitsOn } from "@holdfast/contract";
import { FINDINGS } from "@holdfast/contract";
import { describe, expect, it } from "vitest";
import type { ProcessSeen } from "../ports/index.ts";
import { diagnose, type ExecFact, type Facts } from "./diagnosis.ts";
import { type ActivityWindow, compareSnapshots } from "./process-activity.ts";
import { RULES } from "./rules.ts";

const MB = 1_048_576;
const NOW = 1_800_000_000_000;
const WINDOW = 3_000;

const wait = (on: WaitsOn, over: Partial<ThreadWait> = {}): ThreadWait => ({
  on,
  threads: 1,
  bounded: false,
  what: null,
  ...over,
});

const process = (over: Partial<ProcessSeen> = {}): ProcessSeen => ({
  pid: 7,
  parent: 1,
  name: "worker",
  commandLine: "worker --fast",
  state: "S",
  threads: 1,
  waits: [wait("sleep", { bounded: true })],
  cpuMs: 0,
  rssBytes: 10 * MB,
  execId: "exec-1",
  startTime: "100",
  faults: 0,
  calls: 0,
  ...over,
});
/** A process that has been running for a while. */
const spinning = process({ state: "R", cpuMs: 5_000 });
const keeper = process({ pid: 1, parent: 0, name: "keeper", waits: [wait("events")] });

/** The activity of these processes, each with what it did between the snapshots. */
function seen(...pairs: readonly [ProcessSeen, Partial<ProcessSeen>?][]): ActivityWindow {
  const first = { at: NOW - WINDOW, processes: [keeper, ...pairs.map(([one]) => one)], truncated: false };
  const later = pairs.map(([one, change = {}]) => ({ ...one, ...change }));
  return compareSnapshots(first, { at: NOW, processes: [keeper, ...later], truncated: false });
}

const running: ExecFact = {
  id: "exec-1",
  command: "worker --fast",
  startedAt: NOW - 60_000,
  createdAt: NOW - 60_000,
  endsBy: null,
};

const usage = {
  at: NOW,
  cpuMs: 0,
  throttledMs: 0,
  memoryBytes: 50 * MB,
  processes: 3,
  pidsRefused: 0,
  readBytes: 0,
  writtenBytes: 0,
  ioOperations: 0,
  disk: null,
};

const facts = (over: Partial<Facts> = {}): Facts => ({
  now: NOW,
  status: "ready",
  cause: null,
  recovery: null,
  keptUntil: null,
  filesLeft: { are: "unknown" },
  nextStopAt: null,
  restartsOnLoss: false,
  since: NOW - 3_600_000,
  labels: { task_id: "7" },
  expectedLabels: ["task_id"],
  limits: { memoryMb: 1_024, cpus: 2, pids: 512 },
  windowMs: WINDOW,
  usage,
  cpuPercent: 0,
  forksRefused: 0,
  memory: [],
  busyForMs: 0,
  activity: seen(),
  execs: { running: [running], queued: [] },
  ended: { count: 5, timedOut: 0, windowMs: 600_000 },
  oom: { kills: 0, lastAt: null },
  linkLosses: 0,
  clockJump: null,
  launches: { suspended: false, waiting: 0 },
  isDiskFull: false,
  ...over,
});

const about = { sandboxId: "sbx_0123456789abcdef", name: "box", unseen: [] };
const diagnoseWith = (over: Partial<Facts>) => diagnose(facts(over), about);
const degraded = (code: string) =>
  ({ status: "degraded", cause: { code, message: `because of ${code}` } }) as const;

const leak = (count: number, everyMs: number, stepMb: number) =>
  Array.from({ length: count }, (_, i) => ({ x: NOW - (count - i) * everyMs, y: (50 + i * stepMb) * MB }));

const SCENES: readonly [scene: string, kind: FindingKind, words: string, over: Partial<Facts>][] = [
  ["a loop that does nothing", "busy_loop", "busy loop", { activity: seen([spinning, { cpuMs: 7_950 }]) }],
  [
    "a loop that is throttled by its CPU limit",
    "busy_loop",
    "busy loop",
    {
      limits: { memoryMb: 64, cpus: 0.5, pids: 64 },
      activity: seen([spinning, { cpuMs: 6_480 }]),
    },
  ],
  ["a loop on a crowded host", "busy_loop", "busy loop", { activity: seen([spinning, { cpuMs: 6_200 }]) }],
  [
    "two threads that wait for each other",
    "deadlock",
    "deadlocked",
    { activity: seen([process({ threads: 2, waits: [wait("futex", { threads: 2 })] })]) },
  ],
  [
    "a read of a FIFO without a writer",
    "waiting_on_io",
    "fifo, /tmp/pipe",
    { activity: seen([process({ waits: [wait("fifo", { what: "/tmp/pipe" })] })]) },
  ],
  [
    "a shell that waits for a child that waits for a lock",
    "waiting_on_io",
    "lock",
    {
      activity: seen(
        [process({ waits: [wait("child")] })],
        [process({ pid: 8, parent: 7, waits: [wait("lock")] })],
      ),
    },
  ],
  ["memory that only grows", "memory_leak", "memory leak", { memory: leak(30, 5_000, 10) }],
  ["an out-of-memory kill", "out_of_memory", "out of memory", { oom: { kills: 2, lastAt: NOW - 5_000 } }],
  [
    "a pile of zombies",
    "zombies",
    "zombie processes",
    {
      activity: seen(
        [process({ waits: [wait("sleep", { bounded: true })] })],
        ...Array.from({ length: 12 }, (_, i): [ProcessSeen] => [
          process({ pid: 20 + i, parent: 7, state: "Z", waits: [wait("zombie")] }),
        ]),
      ),
    },
  ],
  [
    "a full disk",
    "disk_full",
    "disk of the sandbox is full",
    { usage: { ...usage, disk: { usedBytes: 99 * MB, limitBytes: 100 * MB } } },
  ],
  ["a proof that found the disk full", "disk_full", "disk of the sandbox is full", { isDiskFull: true }],
  ["the process limit", "pid_limit", "process limit", { usage: { ...usage, processes: 512 } }],
  [
    "a process in uninterruptible sleep",
    "uninterruptible",
    "state D",
    { activity: seen([process({ state: "D", waits: [wait("disk", { what: "io_schedule" })] })]) },
  ],
  ["a keeper that was stopped", "keeper_silent", "keeper does not answer", degraded("keeper_stopped")],
  ["a silent keeper", "keeper_silent", "keeper does not answer", degraded("keeper_silent")],
  ["no link", "keeper_silent", "keeper does not answer", degraded("link_down")],
  ["a root that is gone", "mount_gone", "mount", degraded("root_unmounted")],
  ["a drive that is gone", "mount_gone", "mount", degraded("mount_broken")],
  ["files that are gone", "files_gone", "writes to is gone", degraded("files_gone")],
  ["a disk image that is gone", "files_gone", "writes to is gone", degraded("disk_gone")],
  ["a keeper outside its cgroup", "not_serving", "is not serving", degraded("cgroup_gone")],
  ["journals that are gone", "not_serving", "is not serving", degraded("journals_gone")],
  ["a freeze that was not requested", "frozen", "frozen", degraded("frozen")],
  ["a freeze to protect the disk", "frozen", "frozen", degraded("disk_filler")],
  ["no keeper", "keeper_gone", "keeper is gone", degraded("keeper_missing")],
  ["a proof that fails", "not_serving", "is not serving", degraded("proof_failed")],
  ["an observation that failed", "not_serving", "is not serving", degraded("observation_unknown")],
  ["a link that keeps breaking", "link_flapping", "keeps breaking", { linkLosses: 4 }],
  [
    "commands that time out",
    "repeated_timeouts",
    "keep timing out",
    { ended: { count: 6, timedOut: 4, windowMs: 600_000 } },
  ],
  [
    "commands that stay queued",
    "queue_starved",
    "are queued",
    { execs: { running: [running], queued: [{ ...running, id: "b", createdAt: NOW - 120_000 }] } },
  ],
  [
    "a create that stays queued",
    "queue_starved",
    "queued for its launch",
    { status: "queued", since: NOW - 60_000, activity: null },
  ],
  [
    "a failed sandbox",
    "failed",
    "sandbox failed",
    { status: "failed", cause: { code: "keeper_died", message: "gone" }, activity: null },
  ],
  ["a sandbox in deletion", "stopping", "in deletion", { status: "stopping", activity: null }],
  ["a sandbox in launch", "starting", "being launched", { status: "creating", activity: null }],
  ["a sandbox in standby", "asleep", "in standby", { status: "standby", activity: null }],
  ["a paused sandbox", "frozen", "paused", { status: "paused" }],
  ["no work", "idle", "serving and idle", { execs: { running: [], queued: [] } }],
  [
    "a server that waits for clients",
    "idle",
    "for a client",
    { activity: seen([process({ waits: [wait("events")] })]) },
  ],
  [
    "a loop beside other, short-lived work",
    "busy_loop",
    "busy loop",
    {
      activity: compareSnapshots(
        {
          at: NOW - WINDOW,
          processes: [keeper, spinning, process({ pid: 20, parent: 9 })],
          truncated: false,
        },
        {
          at: NOW,
          processes: [keeper, { ...spinning, cpuMs: 7_950 }, process({ pid: 21, parent: 9 })],
          truncated: false,
        },
      ),
    },
  ],
  [
    "a multi-threaded server that waits for clients",
    "idle",
    "for a client",
    { activity: seen([process({ threads: 11, waits: [wait("events"), wait("futex", { threads: 10 })] })]) },
  ],
  [
    "a multi-threaded program that reads a FIFO",
    "waiting_on_io",
    "fifo",
    {
      activity: seen([
        process({ threads: 8, waits: [wait("fifo", { what: "/tmp/f" }), wait("futex", { threads: 7 })] }),
      ]),
    },
  ],
  [
    "a program whose main thread waits for threads that wait for clients",
    "idle",
    "for a client",
    { activity: seen([process({ threads: 3, waits: [wait("futex", { threads: 2 }), wait("socket")] })]) },
  ],
  [
    "a pipeline whose first process waits for clients",
    "idle",
    "for a client",
    { activity: seen([process({ waits: [wait("events")] })], [process({ pid: 8, waits: [wait("pipe")] })]) },
  ],
  [
    "a long compile that began recently",
    "working",
    "is working",
    { activity: seen([process({ state: "R" }), { cpuMs: 2_950 }]) },
  ],
  [
    "a compile: CPU, calls, new memory, processes that come and go",
    "working",
    "is working",
    {
      activity: compareSnapshots(
        {
          at: NOW - WINDOW,
          processes: [keeper, process({ pid: 5 }), process({ pid: 6, state: "R" })],
          truncated: false,
        },
        {
          at: NOW,
          processes: [keeper, process({ pid: 5, calls: 40 }), process({ pid: 9, state: "R", cpuMs: 2_000 })],
          truncated: false,
        },
      ),
    },
  ],
  [
    "one long compile: a whole core, and new memory all the time",
    "working",
    "is working",
    { activity: seen([spinning, { cpuMs: 7_950, faults: 4_000, rssBytes: 60 * MB }]) },
  ],
  [
    "a copy: a whole core, and reads and writes all the time",
    "working",
    "is working",
    { activity: seen([spinning, { cpuMs: 7_950, calls: 20_000 }]) },
  ],
];

describe("a diagnosis", () => {
  it.each(SCENES)("of %s is %s", (_scene, kind, words, over) => {
    const { findings, summary } = diagnoseWith(over);
    expect(findings[0]?.kind).toBe(kind);
    expect(summary.toLowerCase()).toContain(words.toLowerCase());
    for (const finding of findings) {
      expect(finding.evidence.length + finding.you.length).toBeGreaterThan(0);
      expect(finding.holdfast).not.toBe("");
    }
  });

  it("reports no problem for idle pools, pipelines and servers on stdin", () => {
    const pool = [8, 9, 10, 11].map((pid): [ProcessSeen] => [
      process({ pid, parent: 7, waits: [wait("futex")] }),
    ]);
    const quiet = [
      seen([process({ threads: 4, waits: [wait("futex", { threads: 3 }), wait("pipe")] })], ...pool),
      seen([process({ waits: [wait("pipe")] })]),
      seen([process({ waits: [wait("terminal")] })]),
      seen([process({ waits: [wait("socket")] })]),
    ];
    for (const activity of quiet)
      expect(diagnoseWith({ activity }).findings.filter(({ severity }) => severity === "problem")).toEqual(
        [],
      );
  });

  it("reports an unknown state if no rule applies", () => {
    const { findings } = diagnoseWith({ activity: seen([process({ waits: [wait("unknown")] })]) });
    expect(findings[0]).toMatchObject({ kind: "unknown", confidence: "low" });
    expect(diagnoseWith({ activity: null }).findings[0]?.kind).toBe("unknown");
  });

  it("flags a sandbox without a task label, after its activity", () => {
    const { findings, summary } = diagnoseWith({ labels: {}, execs: { running: [], queued: [] } });
    expect(findings.map(({ kind }) => kind)).toEqual(["idle", "no_task"]);
    expect(summary).toContain("serving and idle");
  });

  it("reports a clock jump as a side note", () => {
    const kinds = diagnoseWith({ clockJump: { at: NOW - 1_000, byMs: -3_600_000 } }).findings.map(
      ({ kind }) => kind,
    );
    expect(kinds).toContain("clock_jump");
    expect(kinds[0]).not.toBe("clock_jump");
  });

  it("puts the reason for not serving before the activity of commands", () => {
    const both = { ...degraded("root_unmounted"), activity: seen([spinning, { cpuMs: 7_950 }]) };
    expect(diagnoseWith(both).findings.map(({ kind }) => kind)).toEqual(["mount_gone", "busy_loop"]);
  });

  it("reports a leak with low confidence until it has lasted", () => {
    const confidence = (points: Facts["memory"]) => diagnoseWith({ memory: points }).findings[0]?.confidence;
    expect(confidence(leak(8, 500, 20))).toBe("low");
    expect(diagnoseWith({ memory: leak(8, 500, 20) }).findings[0]?.severity).toBe("notice");
    expect(confidence(leak(12, 2_000, 20))).toBe("medium");
    expect(confidence(leak(40, 5_000, 10))).toBe("high");
  });

  it("reports no leak for memory that goes up and down", () => {
    const points = leak(30, 5_000, 10).map(({ x, y }, i) => ({ x, y: i % 3 === 0 ? 20 * MB : y }));
    expect(diagnoseWith({ memory: points }).findings.map(({ kind }) => kind)).not.toContain("memory_leak");
  });

  it("says when a hanging command times out", () => {
    const execs = { running: [{ ...running, endsBy: NOW + 30_000 }], queued: [] };
    const { findings } = diagnoseWith({ execs, activity: seen([spinning, { cpuMs: 7_950 }]) });
    expect(findings[0]?.holdfast).toContain("after about 30 s");
  });

  it("says what healing does, when, and what its last step is", () => {
    const recovery = {
      step: "remount",
      since: new Date(NOW).toISOString(),
      tries: 1,
      nextAt: new Date(NOW + 10_000).toISOString(),
      message: "Its root is put back.",
    } as const;
    const { findings, nextAt } = diagnoseWith({ ...degraded("root_unmounted"), recovery });
    expect(findings[0]?.holdfast).toContain(recovery.nextAt);
    expect(findings[0]?.holdfast).toContain("its files stay where they are");
    expect(nextAt).toBe(recovery.nextAt);
  });

  it("promises the files of a failed sandbox only if a look has found them", () => {
    const failed = {
      status: "failed",
      cause: { code: "keeper_died", message: "gone" },
      keptUntil: NOW,
      activity: null,
    } as const;
    const findingWith = (filesLeft: Facts["filesLeft"]) => {
      const [finding] = diagnoseWith({ ...failed, filesLeft }).findings;
      return { kept: finding?.holdfast, you: finding?.you.join(" ") };
    };
    expect(findingWith({ are: "kept" }).kept).toMatch(/its files and its last memory image.* are kept until/);
    expect(findingWith({ are: "unknown" }).kept).toMatch(/what is left of its files, are kept until/);
    const incomplete = findingWith({ are: "incomplete", missing: "the disk" });
    expect(incomplete.kept).toMatch(/Some of its files are missing/);
    expect(incomplete.you).not.toMatch(/holdfast (restart|cp)/);
    const removed = findingWith({ are: "removed" });
    expect(removed.kept).toMatch(/never ready, so none of its files are left/);
    expect(removed.you).not.toMatch(/holdfast (restart|cp)/);
  });

  it("strips control characters from text that comes from a sandbox", () => {
    const evil = { ...spinning, commandLine: "x\u001b]0;owned\u0007 y" };
    const text = JSON.stringify(diagnoseWith({ activity: seen([evil, { cpuMs: 7_950 }]) }));
    expect(text).not.toMatch(/\\u001b|\\u0007/);
  });

  it("has a rule for every kind of finding except unknown", () => {
    const ruled = new Set(RULES.map(({ kind }) => kind));
    expect(FINDINGS.filter((kind) => !ruled.has(kind))).toEqual(["unknown"]);
  });
});
