import type { FindingKind, ThreadWait, WaitsOn } from "@holdfast/contract";
import { FINDINGS } from "@holdfast/contract";
import { describe, expect, it } from "vitest";
import { diagnose, type ExecFact, type Facts } from "./diagnosis.ts";
import { RULES } from "./diagnosis-rules.ts";
import type { ProcessSeen } from "./ports.ts";
import { compareLooks, type Signs } from "./signs.ts";

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
/** Runs, and has for a while. */
const spinning = process({ state: "R", cpuMs: 5_000 });
const keeper = process({ pid: 1, parent: 0, name: "keeper", waits: [wait("events")] });

/** The same processes before and after, with what each did in between. */
function seen(...pairs: readonly [ProcessSeen, Partial<ProcessSeen>?][]): Signs {
  const first = { at: NOW - WINDOW, processes: [keeper, ...pairs.map(([one]) => one)], truncated: false };
  const later = pairs.map(([one, change = {}]) => ({ ...one, ...change }));
  return compareLooks(first, { at: NOW, processes: [keeper, ...later], truncated: false });
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
  nextStopAt: null,
  restartsOnLoss: false,
  since: NOW - 3_600_000,
  labels: { task_id: "7" },
  limits: { memoryMb: 1_024, cpus: 2, pids: 512 },
  windowMs: WINDOW,
  usage,
  cpuPercent: 0,
  forksRefused: 0,
  memory: [],
  busyForMs: 0,
  signs: seen(),
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
const told = (over: Partial<Facts>) => diagnose(facts(over), about);
const degraded = (code: string) =>
  ({ status: "degraded", cause: { code, message: `because of ${code}` } }) as const;

const leak = (count: number, everyMs: number, stepMb: number) =>
  Array.from({ length: count }, (_, i) => ({ x: NOW - (count - i) * everyMs, y: (50 + i * stepMb) * MB }));

const SCENES: readonly [scene: string, kind: FindingKind, words: string, over: Partial<Facts>][] = [
  ["a loop that does nothing", "busy_loop", "busy loop", { signs: seen([spinning, { cpuMs: 7_950 }]) }],
  [
    "a loop that is held back by its CPU limit",
    "busy_loop",
    "busy loop",
    {
      limits: { memoryMb: 64, cpus: 0.5, pids: 64 },
      signs: seen([spinning, { cpuMs: 6_480 }]),
    },
  ],
  ["a loop on a crowded host", "busy_loop", "busy loop", { signs: seen([spinning, { cpuMs: 6_200 }]) }],
  [
    "two threads that wait for each other",
    "deadlock",
    "deadlocked",
    { signs: seen([process({ threads: 2, waits: [wait("futex", { threads: 2 })] })]) },
  ],
  [
    "a read of a FIFO that nobody writes to",
    "waiting_on_io",
    "fifo, /tmp/pipe",
    { signs: seen([process({ waits: [wait("fifo", { what: "/tmp/pipe" })] })]) },
  ],
  [
    "a shell that waits for a child that waits for a lock",
    "waiting_on_io",
    "lock",
    {
      signs: seen(
        [process({ waits: [wait("child")] })],
        [process({ pid: 8, parent: 7, waits: [wait("lock")] })],
      ),
    },
  ],
  ["memory that only grows", "memory_leak", "memory leak", { memory: leak(30, 5_000, 10) }],
  ["a kill for memory", "out_of_memory", "out of memory", { oom: { kills: 2, lastAt: NOW - 5_000 } }],
  [
    "a pile of zombies",
    "zombies",
    "zombies",
    {
      signs: seen(
        [process({ waits: [wait("sleep", { bounded: true })] })],
        ...Array.from({ length: 12 }, (_, i): [ProcessSeen] => [
          process({ pid: 20 + i, parent: 7, state: "Z", waits: [wait("zombie")] }),
        ]),
      ),
    },
  ],
  [
    "a disk of its own that is full",
    "disk_full",
    "disk is full",
    { usage: { ...usage, disk: { usedBytes: 99 * MB, limitBytes: 100 * MB } } },
  ],
  ["a proof that found no room", "disk_full", "disk is full", { isDiskFull: true }],
  [
    "as many processes as it may have",
    "pid_limit",
    "as many processes",
    { usage: { ...usage, processes: 512 } },
  ],
  [
    "a process that the kernel holds",
    "uninterruptible",
    "state D",
    { signs: seen([process({ state: "D", waits: [wait("disk", { what: "io_schedule" })] })]) },
  ],
  ["a keeper that was stopped", "keeper_silent", "keeper does not answer", degraded("keeper_stopped")],
  ["a keeper that says nothing", "keeper_silent", "keeper does not answer", degraded("keeper_silent")],
  ["no link", "keeper_silent", "keeper does not answer", degraded("link_down")],
  ["a root that is gone", "mount_gone", "mount", degraded("root_unmounted")],
  ["a drive that is gone", "mount_gone", "mount", degraded("mount_broken")],
  ["frozen by nobody", "frozen", "frozen", degraded("frozen")],
  ["frozen for the disk's sake", "frozen", "frozen", degraded("disk_filler")],
  ["no keeper", "keeper_gone", "keeper is gone", degraded("keeper_missing")],
  ["a proof that fails", "not_serving", "does not serve", degraded("proof_failed")],
  ["a look that failed", "not_serving", "does not serve", degraded("observation_unknown")],
  ["a link that breaks again and again", "link_flapping", "again and again", { linkLosses: 4 }],
  [
    "commands that time out",
    "repeated_timeouts",
    "time out again and again",
    { ended: { count: 6, timedOut: 4, windowMs: 600_000 } },
  ],
  [
    "commands that get no turn",
    "queue_starved",
    "wait for their turn",
    { execs: { running: [running], queued: [{ ...running, id: "b", createdAt: NOW - 120_000 }] } },
  ],
  [
    "a create that gets no turn",
    "queue_starved",
    "waited for its launch",
    { status: "queued", since: NOW - 60_000, signs: null },
  ],
  [
    "one that failed",
    "failed",
    "It failed",
    { status: "failed", cause: { code: "keeper_died", message: "gone" }, signs: null },
  ],
  ["one that is being deleted", "stopping", "being deleted", { status: "stopping", signs: null }],
  ["one that is launched", "starting", "being launched", { status: "creating", signs: null }],
  ["one that sleeps", "asleep", "It sleeps", { status: "standby", signs: null }],
  ["one that is paused", "frozen", "paused", { status: "paused" }],
  ["nothing to do", "idle", "nothing to do", { execs: { running: [], queued: [] } }],
  [
    "a server that waits for callers",
    "idle",
    "somebody to come",
    { signs: seen([process({ waits: [wait("events")] })]) },
  ],
  [
    "a loop beside other work that comes and goes",
    "busy_loop",
    "busy loop",
    {
      signs: compareLooks(
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
    "a server of many threads that waits for callers",
    "idle",
    "somebody to come",
    { signs: seen([process({ threads: 11, waits: [wait("events"), wait("futex", { threads: 10 })] })]) },
  ],
  [
    "a program of many threads that reads a FIFO",
    "waiting_on_io",
    "fifo",
    {
      signs: seen([
        process({ threads: 8, waits: [wait("fifo", { what: "/tmp/f" }), wait("futex", { threads: 7 })] }),
      ]),
    },
  ],
  [
    "a program whose first thread waits for those that wait for callers",
    "idle",
    "somebody to come",
    { signs: seen([process({ threads: 3, waits: [wait("futex", { threads: 2 }), wait("socket")] })]) },
  ],
  [
    "a pipeline that begins with something that waits for callers",
    "idle",
    "somebody to come",
    { signs: seen([process({ waits: [wait("events")] })], [process({ pid: 8, waits: [wait("pipe")] })]) },
  ],
  [
    "one long compile that is young",
    "working",
    "It works",
    { signs: seen([process({ state: "R" }), { cpuMs: 2_950 }]) },
  ],
  [
    "a compile: CPU, calls, new memory, processes that come and go",
    "working",
    "It works",
    {
      signs: compareLooks(
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
    "It works",
    { signs: seen([spinning, { cpuMs: 7_950, faults: 4_000, rssBytes: 60 * MB }]) },
  ],
  [
    "a copy: a whole core, and reads and writes all the time",
    "working",
    "It works",
    { signs: seen([spinning, { cpuMs: 7_950, calls: 20_000 }]) },
  ],
];

describe("a diagnosis", () => {
  it.each(SCENES)("of %s is %s", (_scene, kind, words, over) => {
    const { findings, summary } = told(over);
    expect(findings[0]?.kind).toBe(kind);
    expect(summary.toLowerCase()).toContain(words.toLowerCase());
    for (const finding of findings) {
      expect(finding.evidence.length + finding.you.length).toBeGreaterThan(0);
      expect(finding.holdfast).not.toBe("");
    }
  });

  it("calls no problem what idle pools, pipelines and servers on stdin look like", () => {
    const pool = [8, 9, 10, 11].map((pid): [ProcessSeen] => [
      process({ pid, parent: 7, waits: [wait("futex")] }),
    ]);
    const quiet = [
      seen([process({ threads: 4, waits: [wait("futex", { threads: 3 }), wait("pipe")] })], ...pool),
      seen([process({ waits: [wait("pipe")] })]),
      seen([process({ waits: [wait("terminal")] })]),
      seen([process({ waits: [wait("socket")] })]),
    ];
    for (const signs of quiet)
      expect(told({ signs }).findings.filter(({ severity }) => severity === "problem")).toEqual([]);
  });

  it("says that it does not know where nothing fits", () => {
    const { findings } = told({ signs: seen([process({ waits: [wait("unknown")] })]) });
    expect(findings[0]).toMatchObject({ kind: "unknown", confidence: "low" });
    expect(told({ signs: null }).findings[0]?.kind).toBe("unknown");
  });

  it("flags one that nobody has said what it is for, behind what it does", () => {
    const { findings, summary } = told({ labels: {}, execs: { running: [], queued: [] } });
    expect(findings.map(({ kind }) => kind)).toEqual(["idle", "no_task"]);
    expect(summary).toContain("nothing to do");
  });

  it("tells of a clock that jumped, as an aside", () => {
    const kinds = told({ clockJump: { at: NOW - 1_000, byMs: -3_600_000 } }).findings.map(({ kind }) => kind);
    expect(kinds).toContain("clock_jump");
    expect(kinds[0]).not.toBe("clock_jump");
  });

  it("puts what keeps it from serving before what its commands do", () => {
    const both = { ...degraded("root_unmounted"), signs: seen([spinning, { cpuMs: 7_950 }]) };
    expect(told(both).findings.map(({ kind }) => kind)).toEqual(["mount_gone", "busy_loop"]);
  });

  it("is not sure of a leak before it has lasted", () => {
    const confidence = (points: Facts["memory"]) => told({ memory: points }).findings[0]?.confidence;
    expect(confidence(leak(8, 500, 20))).toBe("low");
    expect(told({ memory: leak(8, 500, 20) }).findings[0]?.severity).toBe("notice");
    expect(confidence(leak(12, 2_000, 20))).toBe("medium");
    expect(confidence(leak(40, 5_000, 10))).toBe("high");
  });

  it("does not call a leak what goes up and down", () => {
    const points = leak(30, 5_000, 10).map(({ x, y }, i) => ({ x, y: i % 3 === 0 ? 20 * MB : y }));
    expect(told({ memory: points }).findings.map(({ kind }) => kind)).not.toContain("memory_leak");
  });

  it("says when the command's own timeout ends what hangs", () => {
    const execs = { running: [{ ...running, endsBy: NOW + 30_000 }], queued: [] };
    const { findings } = told({ execs, signs: seen([spinning, { cpuMs: 7_950 }]) });
    expect(findings[0]?.holdfast).toContain("in about 30 s");
  });

  it("says what the ladder does, when, and what comes last", () => {
    const recovery = {
      step: "remount",
      since: new Date(NOW).toISOString(),
      tries: 1,
      nextAt: new Date(NOW + 10_000).toISOString(),
      message: "Its root is put back.",
    } as const;
    const { findings, nextAt } = told({ ...degraded("root_unmounted"), recovery });
    expect(findings[0]?.holdfast).toContain(recovery.nextAt);
    expect(findings[0]?.holdfast).toContain("everything kept");
    expect(nextAt).toBe(recovery.nextAt);
  });

  it("never repeats a sandbox's own words as a terminal would take them", () => {
    const evil = { ...spinning, commandLine: "x\u001b]0;owned\u0007 y" };
    const text = JSON.stringify(told({ signs: seen([evil, { cpuMs: 7_950 }]) }));
    expect(text).not.toMatch(/\\u001b|\\u0007/);
  });

  it("has a rule for every kind that it may speak of, but for not knowing", () => {
    const ruled = new Set(RULES.map(({ kind }) => kind));
    expect(FINDINGS.filter((kind) => !ruled.has(kind))).toEqual(["unknown"]);
  });
});
