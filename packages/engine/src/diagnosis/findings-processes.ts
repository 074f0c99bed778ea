import type { Facts, Rule } from "./diagnosis.ts";
import { CANCEL, commandsOf, endings, list, percent, seconds } from "./diagnosis-words.ts";
import { isStill, mainWait, nameOf, plain, type Sign, type Signs, waitsForEver } from "./signs.ts";

/** What its processes do, or wait for. */

const BUSY_SHARE = 0.8;
/** Of one that wants to run all the time, on a host where others do too. */
const CROWDED_SHARE = 0.15;
/** A loop that calls the kernel, or is given new memory, more often than this gets something done. */
const BUSY_CALLS = 5;
const BUSY_FAULTS = 100;
/** One that has not computed for this long yet may be about to be done. */
const BUSY_CPU_MS = 4_000;
const BUSY_SURE_MS = 300_000;
const ZOMBIES_MANY = 10;

export const uninterruptible: Rule = {
  kind: "uninterruptible",
  severity: "problem",
  look: ({ signs, windowMs }) => {
    const stuck = (signs?.lasting ?? []).filter((sign) => sign.process.state === "D" && isStill(sign));
    if (stuck.length === 0) return null;
    return {
      summary: `${stuck.length} of its processes wait${stuck.length === 1 ? "s" : ""} in the kernel and can't be interrupted (state D).`,
      evidence: stuck.slice(0, 5).map(({ process }) => {
        const what = mainWait(process)?.what;
        return `${nameOf(process)} was so at both looks, ${windowMs} ms apart${what ? `, in ${plain(what)}` : ""}.`;
      }),
      confidence: "high",
      holdfast:
        "Nothing: the kernel lets it go when what it waits for is there. Deleting it waits for that as well, and says so.",
      you: ["Look at the host's disks and mounts: 'dmesg | tail', 'holdfast doctor'."],
    };
  },
};

/** Those that do nothing but wait for the end of a child: shells, and whoever else only supervises. */
const isSupervising = ({ process }: Sign): boolean => process.waits.every(({ on }) => on === "child");

/** Processes of which every thread waits for a lock for ever, while nothing in the sandbox runs that could release it. */
function locked({ signs }: Facts): { all: Sign[]; alone: boolean } | null {
  if (signs === null || signs.lasting.length === 0 || signs.churn > 0 || !signs.lasting.every(isStill))
    return null;
  const all = signs.lasting.filter(({ process }) => waitsForEver(process, "futex"));
  if (all.length === 0) return null;
  // Who shares memory with others may wait for them: a pool of idle workers looks the same from outside.
  const others = signs.lasting.filter((sign) => !all.includes(sign) && !isSupervising(sign));
  return { all, alone: all.length === 1 && others.length === 0 };
}

export const deadlock: Rule = {
  kind: "deadlock",
  severity: "problem",
  look: (facts) => {
    const found = locked(facts);
    const [only] = found?.all ?? [];
    if (found === null || only === undefined || !found.alone) return null;
    const { execs, now, windowMs } = facts;
    const { threads } = only.process;
    return {
      summary: `It looks deadlocked: ${threads === 1 ? "the only thread" : `all ${threads} threads`} of ${nameOf(only.process)} wait${threads === 1 ? "s" : ""} for a lock, without a time limit, and nothing runs that could release it.`,
      evidence: [
        `At both looks, ${windowMs} ms apart, every thread was in futex and used no CPU.`,
        ...commandsOf(execs.running).slice(0, 3),
      ],
      confidence: threads > 1 ? "high" : "medium",
      holdfast: endings(execs.running, now, [only]),
      you: ["Take a stack of it before you end it, if there is a debugger in the image.", CANCEL],
    };
  },
};

export const perhapsDeadlock: Rule = {
  kind: "deadlock",
  severity: "notice",
  look: (facts) => {
    const found = locked(facts);
    if (found === null || found.alone) return null;
    return {
      summary: `${list(found.all.map(({ process }) => nameOf(process)))} wait for a lock without a time limit: deadlocked, or workers without work.`,
      evidence: [`At both looks, ${facts.windowMs} ms apart, nothing in the sandbox used any CPU.`],
      confidence: "low",
      holdfast: endings(facts.execs.running, facts.now, found.all),
      you: ["See whether work is expected of them: 'holdfast logs NAME'.", CANCEL],
    };
  },
};

export const busyLoop: Rule = {
  kind: "busy_loop",
  severity: "problem",
  look: ({ signs, execs, now, limits, busyForMs }) => {
    if (signs === null) return null;
    const most = Math.min(1, limits.cpus);
    const loops = signs.lasting.filter((sign) => isLoop(sign, signs, most));
    const [first] = loops;
    if (first === undefined) return null;
    return {
      summary: `It looks like a busy loop: ${list(loops.map(({ process }) => nameOf(process)))} use${loops.length === 1 ? "s" : ""} ${percent(first.cpuShare)} of a core and neither reads, writes nor asks for memory.`,
      evidence: [
        `In ${signs.ms} ms: ${first.callsRate === null ? "its calls are hidden" : `${first.callsRate.toFixed(1)} reads and writes a second`}, ${Math.round(first.faultsRate)} new pages a second, and it started nothing.`,
        `It has used ${seconds(first.process.cpuMs)} of CPU so far${busyForMs > 0 ? `, and the sandbox ${percent(most)} of a core for ${seconds(busyForMs)}` : ""}.`,
        ...commandsOf(execs.running).slice(0, 3),
      ],
      confidence: busyForMs >= BUSY_SURE_MS && first.callsRate !== null ? "high" : "medium",
      holdfast: endings(execs.running, now, loops),
      you: ["A long computation looks the same: see whether it is expected to take this long.", CANCEL],
    };
  },
};

const isLoop = (sign: Sign, { parentsOfChange }: Signs, most: number): boolean =>
  sign.cpuShare >= (sign.ranAtBoth ? CROWDED_SHARE : BUSY_SHARE) * most &&
  (sign.callsRate ?? 0) <= BUSY_CALLS &&
  sign.faultsRate <= BUSY_FAULTS &&
  sign.process.cpuMs >= BUSY_CPU_MS &&
  !parentsOfChange.has(sign.process.pid);

export const zombies: Rule = {
  kind: "zombies",
  severity: "problem",
  look: ({ signs, limits }) => {
    const dead = (signs?.now ?? []).filter(({ state }) => state === "Z");
    if (dead.length < ZOMBIES_MANY) return null;
    const parents = new Map<number, number>();
    for (const { parent } of dead) parents.set(parent, (parents.get(parent) ?? 0) + 1);
    const [worst] = [...parents].sort((a, b) => b[1] - a[1]);
    const parent = signs?.now.find(({ pid }) => pid === worst?.[0]);
    const who = parent === undefined ? `process ${worst?.[0]}` : nameOf(parent);
    return {
      summary: `${dead.length} dead processes are piled up (zombies): ${who} started ${worst?.[1]} of them and never asks how they ended.`,
      evidence: [`They count against its limit of ${limits.pids} processes until it asks, or ends.`],
      confidence: "high",
      holdfast: "Nothing: they go when their parent does. Those without a parent are taken care of at once.",
      you: [`End ${who}: what it left goes with it.`],
    };
  },
};

const HANGS: ReadonlySet<string> = new Set(["fifo", "lock"]);
const MAY_HANG: ReadonlySet<string> = new Set(["pipe", "socket", "terminal", "file"]);
/** Who waits so is done for now, or waits for somebody to come. */
const RESTS: ReadonlySet<string> = new Set(["sleep", "events", "child", "socket", "terminal"]);

/** Whether it only rests: its first thread does, or it waits for other threads of which one does. */
function isResting({ process }: Sign): boolean {
  const main = mainWait(process);
  if (main === null || RESTS.has(main.on) || main.bounded) return true;
  return main.on === "futex" && process.waits.some(({ on, bounded }) => bounded || RESTS.has(on));
}

function waiting(severity: "problem" | "notice", kinds: ReadonlySet<string>): Rule {
  return {
    kind: "waiting_on_io",
    severity,
    look: ({ signs, execs, now, windowMs }) => {
      if (signs === null || execs.running.length === 0 || signs.churn > 0) return null;
      // Something in it gets on: then whoever waits, waits for that.
      if (!signs.lasting.every(isStill)) return null;
      const hung = signs.lasting.filter(({ process }) => {
        const wait = mainWait(process);
        return wait !== null && kinds.has(wait.on) && !wait.bounded;
      });
      // The end of a pipeline waits for its beginning, which waits for somebody to come.
      const isPipeline = signs.lasting.some(
        (sign) => !hung.includes(sign) && isResting(sign) && !isSupervising(sign),
      );
      if (hung.length === 0 || (severity === "notice" && isPipeline)) return null;
      const what = ({ process }: Sign) => {
        const wait = mainWait(process);
        return `${nameOf(process)} waits on a ${wait?.on}${wait?.what ? `, ${plain(wait.what)}` : ""}`;
      };
      return {
        summary: `It waits for input or output: ${list(hung.map(what), 3)}, and nothing else in it runs.`,
        evidence: [
          `At both looks, ${windowMs} ms apart, it waited there, without a time limit and without using any CPU.`,
          ...commandsOf(execs.running).slice(0, 3),
        ],
        confidence: "high",
        holdfast: endings(execs.running, now, hung),
        you: [
          "Give it what it waits for, or let the other side end: 'holdfast exec NAME -- …', stdin of the exec.",
          CANCEL,
        ],
      };
    },
  };
}

export const hung = waiting("problem", HANGS);
export const mayHang = waiting("notice", MAY_HANG);

export const working: Rule = {
  kind: "working",
  severity: "fine",
  look: ({ status, execs, signs, cpuPercent, windowMs }) => {
    if (status !== "ready" || signs === null) return null;
    const moving = signs.lasting.filter((sign) => !isStill(sign));
    if (moving.length === 0 && signs.churn === 0) return null;
    return {
      summary: `It works: ${execs.running.length === 1 ? "1 command is" : `${execs.running.length} commands are`} under way, and something gets done.`,
      evidence: [
        `In ${windowMs} ms: processes that ran: ${moving.length}, that came or went: ${signs.churn}${cpuPercent === null ? "" : `, ${Math.round(cpuPercent)} % of a core`}.`,
        ...commandsOf(execs.running).slice(0, 3),
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
  look: ({ status, execs, signs }) => {
    if (status !== "ready" || signs === null || signs.churn > 0 || !signs.lasting.every(isStill)) return null;
    const waits = signs.lasting.filter((sign) => !isResting(sign));
    const isPipe = ({ process }: Sign) => mainWait(process)?.on === "pipe";
    // What waits on a pipe rests if whoever feeds it does.
    if (
      waits.length > 0 &&
      (!waits.every(isPipe) || signs.lasting.every((sign) => waits.includes(sign) || isSupervising(sign)))
    )
      return null;
    const { running } = execs;
    const summary =
      running.length === 0
        ? "It serves and has nothing to do."
        : `It serves; its ${running.length} command${running.length === 1 ? " waits" : "s wait"} for time to pass, or for somebody to come.`;
    return {
      summary,
      evidence: [
        `${signs.now.length} processes besides the keeper, none of which ran.`,
        ...commandsOf(running).slice(0, 3),
      ],
      confidence: "high",
      holdfast: "Nothing, unless its idleStandbyMs puts it to sleep.",
      you: ["Nothing."],
    };
  },
};
