import type { ThreadWait, WaitsOn } from "@holdfast/contract";
import type { ProcessSeen, ProcessSnapshot } from "../ports/index.ts";

/** Activity of one process between two snapshots. */
export interface ProcessActivity {
  process: ProcessSeen;
  /** CPU time used, as a share of one core; 1 is a full core. */
  cpuShare: number;
  /** Read and write calls per second; null if the host does not report them. */
  callsRate: number | null;
  faultsRate: number;
  grownBytes: number;
  /**
   * Whether the process was runnable in both snapshots. On a busy host a runnable process may get little CPU, so its
   * CPU share alone does not show whether it is busy.
   */
  ranAtBoth: boolean;
}

export interface ActivityWindow {
  ms: number;
  /** Processes that are present in both snapshots, except the keeper. */
  lasting: ProcessActivity[];
  /** Number of processes that started or ended between the snapshots, which shows that work is being done. */
  churn: number;
  /** PIDs of the parents of the processes that started or ended between the snapshots. */
  parentsOfChange: ReadonlySet<number>;
  /** All processes of the last snapshot, except the keeper. */
  now: ProcessSeen[];
}

const KEEPER_PID = 1;
const isCommand = ({ pid }: ProcessSeen): boolean => pid !== KEEPER_PID;
const keyOf = ({ pid, startTime }: ProcessSeen): string => `${pid} ${startTime}`;

/** Compares two snapshots of the same sandbox. */
export function compareSnapshots(first: ProcessSnapshot, last: ProcessSnapshot): ActivityWindow {
  const ms = Math.max(1, last.at - first.at);
  const before = new Map(first.processes.filter(isCommand).map((process) => [keyOf(process), process]));
  const now = last.processes.filter(isCommand);
  const lasting = now.flatMap((process) => {
    const earlier = before.get(keyOf(process));
    return earlier === undefined ? [] : [activityBetween(earlier, process, ms)];
  });
  // Processes are compared only if both snapshots are complete: truncated ones may contain different processes although
  // nothing has changed.
  const isWhole = !first.truncated && !last.truncated;
  const kept = new Set(lasting.map(({ process }) => keyOf(process)));
  const changed = [...before.values(), ...now].filter((process) => isWhole && !kept.has(keyOf(process)));
  const parentsOfChange = new Set(changed.map(({ parent }) => parent));
  return { ms, lasting, churn: changed.length, parentsOfChange, now };
}

function activityBetween(before: ProcessSeen, process: ProcessSeen, ms: number): ProcessActivity {
  const perSecond = (from: number, to: number) => (1000 * Math.max(0, to - from)) / ms;
  return {
    process,
    cpuShare: Math.max(0, process.cpuMs - before.cpuMs) / ms,
    callsRate:
      process.calls === null || before.calls === null ? null : perSecond(before.calls, process.calls),
    faultsRate: perSecond(before.faults, process.faults),
    grownBytes: process.rssBytes - before.rssBytes,
    ranAtBoth: before.state === "R" && process.state === "R",
  };
}

/** Whether the process did nothing between the snapshots. */
export const isStill = ({ cpuShare, callsRate }: ProcessActivity): boolean =>
  cpuShare < 0.005 && (callsRate ?? 0) < 1;

/** Whether every thread of the process waits for `on`, without a time limit. */
export const waitsForever = ({ waits }: Pick<ProcessSeen, "waits">, on: WaitsOn): boolean =>
  waits.length > 0 && waits.every((wait) => wait.on === on && !wait.bounded);

/** Returns the wait of the main thread, which comes first and represents the whole process. */
export const mainWait = ({ waits }: Pick<ProcessSeen, "waits">): ThreadWait | null => waits[0] ?? null;

/** Names a process for people. The name comes from the sandbox, so it is truncated and sanitised. */
export function nameOf({ pid, name, commandLine }: ProcessSeen): string {
  const text = plain(commandLine || name);
  return `process ${pid} (${text.length > 60 ? `${text.slice(0, 57)}…` : text})`;
}

/** Removes control characters, which a terminal would interpret. */
export const plain = (text: string): string => text.replaceAll(/\p{C}+/gu, " ").trim();
