/** Findings about the processes of a sandbox: what they do, and what they wait for. */
import { listNames, percent, seconds } from "../lib/format.ts";
import type { Facts, Rule } from "./diagnosis.ts";
import { CANCEL, describeCommands, describeTimeouts } from "./phrases.ts";
import {
  type ActivityWindow,
  isStill,
  mainWait,
  nameOf,
  type ProcessActivity,
  plain,
  waitsForever,
} from "./process-activity.ts";

const BUSY_SHARE = 0.8;
/**
 * CPU share from which a process that is always runnable is regarded as busy while others compete for the host's CPU.
 */
const CROWDED_SHARE = 0.15;
/** A loop with more read and write calls per second than this makes progress. */
const BUSY_CALLS = 5;
/** A loop with more page faults per second than this makes progress. */
const BUSY_FAULTS = 100;
/** Minimum CPU time of a busy loop. A process with less may be about to finish. */
const BUSY_CPU_MS = 4_000;
const BUSY_SURE_MS = 300_000;
const ZOMBIES_MANY = 10;

export const uninterruptible: Rule = {
  kind: "uninterruptible",
  severity: "problem",
  evaluate: ({ activity, windowMs }) => {
    const stuck = (activity?.lasting ?? []).filter((entry) => entry.process.state === "D" && isStill(entry));
    if (stuck.length === 0) return null;
    return {
      summary: `${stuck.length} of its processes wait${stuck.length === 1 ? "s" : ""} in the kernel, uninterruptible (state D).`,
      evidence: stuck.slice(0, 5).map(({ process }) => {
        const what = mainWait(process)?.what;
        return `${nameOf(process)} was in state D in two snapshots ${windowMs} ms apart${what ? `, in ${plain(what)}` : ""}.`;
      }),
      confidence: "high",
      holdfast:
        "Nothing: the kernel resumes the process when its wait has ended. Deleting the sandbox waits for that too, and reports it.",
      you: ["Check the host's disks and mounts: 'dmesg | tail', 'holdfast doctor'."],
    };
  },
};

/** Whether the process only waits for children to end, as shells and supervisors do. */
const isSupervising = ({ process }: ProcessActivity): boolean =>
  process.waits.every(({ on }) => on === "child");

/**
 * Finds processes in which every thread waits for a lock without a time limit, while no other process runs that could
 * release the lock.
 */
function findLocked({ activity }: Facts): { all: ProcessActivity[]; alone: boolean } | null {
  if (
    activity === null ||
    activity.lasting.length === 0 ||
    activity.churn > 0 ||
    !activity.lasting.every(isStill)
  )
    return null;
  const all = activity.lasting.filter(({ process }) => waitsForever(process, "futex"));
  if (all.length === 0) return null;
  // `alone` is true if no other process could release the lock. With several processes it is false: they may share
  // memory, and a pool of idle workers looks the same from outside as a deadlock.
  const others = activity.lasting.filter((entry) => !all.includes(entry) && !isSupervising(entry));
  return { all, alone: all.length === 1 && others.length === 0 };
}

export const deadlock: Rule = {
  kind: "deadlock",
  severity: "problem",
  evaluate: (facts) => {
    const found = findLocked(facts);
    const [only] = found?.all ?? [];
    if (found === null || only === undefined || !found.alone) return null;
    const { execs, now, windowMs } = facts;
    const { threads } = only.process;
    return {
      summary: `The sandbox looks deadlocked: ${threads === 1 ? "the only thread" : `all ${threads} threads`} of ${nameOf(only.process)} wait${threads === 1 ? "s" : ""} for a lock without a time limit, and nothing runs that could release it.`,
      evidence: [
        `In two snapshots ${windowMs} ms apart, every thread was in futex and used no CPU.`,
        ...describeCommands(execs.running).slice(0, 3),
      ],
      confidence: threads > 1 ? "high" : "medium",
      holdfast: describeTimeouts(execs.running, now, [only]),
      you: ["Take a stack trace before you end it, if the image has a debugger.", CANCEL],
    };
  },
};

export const perhapsDeadlock: Rule = {
  kind: "deadlock",
  severity: "notice",
  evaluate: (facts) => {
    const found = findLocked(facts);
    if (found === null || found.alone) return null;
    return {
      summary: `${listNames(found.all.map(({ process }) => nameOf(process)))} wait for a lock without a time limit: a deadlock, or idle workers.`,
      evidence: [`In two snapshots ${facts.windowMs} ms apart, nothing in the sandbox used any CPU.`],
      confidence: "low",
      holdfast: describeTimeouts(facts.execs.running, facts.now, found.all),
      you: ["Check whether they are expected to work: 'holdfast logs NAME'.", CANCEL],
    };
  },
};

export const busyLoop: Rule = {
  kind: "busy_loop",
  severity: "problem",
  evaluate: ({ activity, execs, now, limits, busyForMs }) => {
    if (activity === null) return null;
    const most = Math.min(1, limits.cpus);
    const loops = activity.lasting.filter((entry) => isLoop(entry, activity, most));
    const [first] = loops;
    if (first === undefined) return null;
    return {
      summary: `A busy loop is likely: ${listNames(loops.map(({ process }) => nameOf(process)))} use${loops.length === 1 ? "s" : ""} ${percent(first.cpuShare)} of a core without reading, writing or allocating memory.`,
      evidence: [
        `In ${activity.ms} ms: ${first.callsRate === null ? "reads and writes are not visible" : `${first.callsRate.toFixed(1)} reads and writes a second`}, ${Math.round(first.faultsRate)} new pages a second, and no new process.`,
        `The process has used ${seconds(first.process.cpuMs)} of CPU time so far${busyForMs > 0 ? `, and the sandbox ${percent(most)} of a core for ${seconds(busyForMs)}` : ""}.`,
        ...describeCommands(execs.running).slice(0, 3),
      ],
      confidence: busyForMs >= BUSY_SURE_MS && first.callsRate !== null ? "high" : "medium",
      holdfast: describeTimeouts(execs.running, now, loops),
      you: ["A long computation looks the same: check whether it is expected to take this long.", CANCEL],
    };
  },
};

const isLoop = (entry: ProcessActivity, { parentsOfChange }: ActivityWindow, most: number): boolean =>
  entry.cpuShare >= (entry.ranAtBoth ? CROWDED_SHARE : BUSY_SHARE) * most &&
  (entry.callsRate ?? 0) <= BUSY_CALLS &&
  entry.faultsRate <= BUSY_FAULTS &&
  entry.process.cpuMs >= BUSY_CPU_MS &&
  !parentsOfChange.has(entry.process.pid);

export const zombies: Rule = {
  kind: "zombies",
  severity: "problem",
  evaluate: ({ activity, limits }) => {
    const dead = (activity?.now ?? []).filter(({ state }) => state === "Z");
    if (dead.length < ZOMBIES_MANY) return null;
    const parents = new Map<number, number>();
    for (const { parent } of dead) parents.set(parent, (parents.get(parent) ?? 0) + 1);
    const [worst] = [...parents].sort((a, b) => b[1] - a[1]);
    const parent = activity?.now.find(({ pid }) => pid === worst?.[0]);
    const who = parent === undefined ? `process ${worst?.[0]}` : nameOf(parent);
    return {
      summary: `${dead.length} zombie processes have accumulated: ${who} started ${worst?.[1]} of them and does not wait for them.`,
      evidence: [
        `They count against the limit of ${limits.pids} processes until their parent waits for them or ends.`,
      ],
      confidence: "high",
      holdfast:
        "Nothing: they disappear when their parent ends. The keeper reaps those without a parent at once.",
      you: [`End ${who}: its zombies disappear with it.`],
    };
  },
};

const HANGS: ReadonlySet<string> = new Set(["fifo", "lock"]);
const MAY_HANG: ReadonlySet<string> = new Set(["pipe", "socket", "terminal", "file"]);
/** Waits of an idle process, which has nothing to do or waits for a client. */
const RESTS: ReadonlySet<string> = new Set(["sleep", "events", "child", "socket", "terminal"]);

/**
 * Whether the process is idle: its main thread is idle, or its main thread waits for other threads and at least one
 * thread is idle. A thread is idle if its wait is typical of idle processes or has a time limit.
 */
function isResting({ process }: ProcessActivity): boolean {
  const main = mainWait(process);
  if (main === null || RESTS.has(main.on) || main.bounded) return true;
  return main.on === "futex" && process.waits.some(({ on, bounded }) => bounded || RESTS.has(on));
}

function waitingRule(severity: "problem" | "notice", kinds: ReadonlySet<string>): Rule {
  return {
    kind: "waiting_on_io",
    severity,
    evaluate: ({ activity, execs, now, windowMs }) => {
      if (activity === null || execs.running.length === 0 || activity.churn > 0) return null;
      // If another process makes progress, the waiting processes may be waiting for that one, so there is no finding.
      if (!activity.lasting.every(isStill)) return null;
      const hung = activity.lasting.filter(({ process }) => {
        const wait = mainWait(process);
        return wait !== null && kinds.has(wait.on) && !wait.bounded;
      });
      // If another process is idle, the waiting process may be a part of the same pipeline: the first process of the
      // pipeline waits for a client, and the others wait for the first. That is normal, so no notice is given.
      const isPipeline = activity.lasting.some(
        (entry) => !hung.includes(entry) && isResting(entry) && !isSupervising(entry),
      );
      if (hung.length === 0 || (severity === "notice" && isPipeline)) return null;
      const what = ({ process }: ProcessActivity) => {
        const wait = mainWait(process);
        return `${nameOf(process)} waits on a ${wait?.on}${wait?.what ? `, ${plain(wait.what)}` : ""}`;
      };
      return {
        summary: `The sandbox waits for input or output: ${listNames(hung.map(what), 3)}, and nothing else runs.`,
        evidence: [
          `In two snapshots ${windowMs} ms apart, it waited there without a time limit and used no CPU.`,
          ...describeCommands(execs.running).slice(0, 3),
        ],
        confidence: "high",
        holdfast: describeTimeouts(execs.running, now, hung),
        you: [
          "Provide the input, or end the other side: 'holdfast exec NAME -- …', stdin of the exec.",
          CANCEL,
        ],
      };
    },
  };
}

export const hung = waitingRule("problem", HANGS);
export const mayHang = waitingRule("notice", MAY_HANG);

export const working: Rule = {
  kind: "working",
  severity: "fine",
  evaluate: ({ status, execs, activity, cpuPercent, windowMs }) => {
    if (status !== "ready" || activity === null) return null;
    const moving = activity.lasting.filter((entry) => !isStill(entry));
    if (moving.length === 0 && activity.churn === 0) return null;
    return {
      summary: `The sandbox is working: ${execs.running.length === 1 ? "1 command is" : `${execs.running.length} commands are`} running, with progress.`,
      evidence: [
        `In ${windowMs} ms: processes that ran: ${moving.length}, that started or ended: ${activity.churn}${cpuPercent === null ? "" : `, ${Math.round(cpuPercent)} % of a core`}.`,
        ...describeCommands(execs.running).slice(0, 3),
      ],
      confidence: "high",
      holdfast: "Nothing.",
      you: ["Nothing."],
    };
  },
};

export const idle: Rule = {
  kind: "idle",
  severity: "fine",
  evaluate: ({ status, execs, activity }) => {
    if (status !== "ready" || activity === null || activity.churn > 0 || !activity.lasting.every(isStill))
      return null;
    const waits = activity.lasting.filter((entry) => !isResting(entry));
    const isPipe = ({ process }: ProcessActivity) => mainWait(process)?.on === "pipe";
    // A process that waits on a pipe is idle if the process at the other end of the pipe is idle. So the sandbox is not
    // idle if a process waits for anything but a pipe, or if no other process can be at the other end.
    if (
      waits.length > 0 &&
      (!waits.every(isPipe) ||
        activity.lasting.every((entry) => waits.includes(entry) || isSupervising(entry)))
    )
      return null;
    const { running } = execs;
    const summary =
      running.length === 0
        ? "The sandbox is serving and idle."
        : `The sandbox is serving; its ${running.length} command${running.length === 1 ? " waits" : "s wait"} for a timer or for a client.`;
    return {
      summary,
      evidence: [
        `${activity.now.length} processes besides the keeper; none of them ran.`,
        ...describeCommands(running).slice(0, 3),
      ],
      confidence: "high",
      holdfast: "Nothing, unless its idleStandbyMs suspends it.",
      you: ["Nothing."],
    };
  },
};
