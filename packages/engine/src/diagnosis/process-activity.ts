import type { ThreadWait, WaitsOn } from "@holdfast/contract";
import type { Look, ProcessSeen } from "./ports.ts";

/** What one process did between two looks at it. */
export interface Sign {
  process: ProcessSeen;
  /** Of one core, 1 for all of it. */
  cpuShare: number;
  /** Per second; null where the host does not say. */
  callsRate: number | null;
  faultsRate: number;
  grownBytes: number;
  /** It ran, or wanted to, at both looks: on a busy host it gets less of a core than it would take. */
  ranAtBoth: boolean;
}

export interface Signs {
  ms: number;
  /** Those that were there at both looks, the keeper aside. */
  lasting: Sign[];
  /** Processes that came or went in between: something is being done. */
  churn: number;
  /** Who started them. */
  parentsOfChange: ReadonlySet<number>;
  /** All at the last look, the keeper aside. */
  now: ProcessSeen[];
}

const KEEPER_PID = 1;
const isCommand = ({ pid }: ProcessSeen): boolean => pid !== KEEPER_PID;
const keyOf = ({ pid, startTime }: ProcessSeen): string => `${pid} ${startTime}`;

/** Compares two looks at the same sandbox. */
export function compareLooks(first: Look, last: Look): Signs {
  const ms = Math.max(1, last.at - first.at);
  const before = new Map(first.processes.filter(isCommand).map((process) => [keyOf(process), process]));
  const now = last.processes.filter(isCommand);
  const lasting = now.flatMap((process) => {
    const earlier = before.get(keyOf(process));
    return earlier === undefined ? [] : [signOf(earlier, process, ms)];
  });
  // Of more than can be looked at each look sees others: that is no change.
  const isWhole = !first.truncated && !last.truncated;
  const kept = new Set(lasting.map(({ process }) => keyOf(process)));
  const changed = [...before.values(), ...now].filter((process) => isWhole && !kept.has(keyOf(process)));
  const parentsOfChange = new Set(changed.map(({ parent }) => parent));
  return { ms, lasting, churn: changed.length, parentsOfChange, now };
}

function signOf(before: ProcessSeen, process: ProcessSeen, ms: number): Sign {
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

/** Whether it did nothing at all between the looks. */
export const isStill = ({ cpuShare, callsRate }: Sign): boolean => cpuShare < 0.005 && (callsRate ?? 0) < 1;

/** Whether every thread of it waits so, for as long as it takes. */
export const waitsForEver = ({ waits }: Pick<ProcessSeen, "waits">, on: WaitsOn): boolean =>
  waits.length > 0 && waits.every((wait) => wait.on === on && !wait.bounded);

/** What the process as a whole waits for: what its first thread does is what it is about, and comes first. */
export const mainWait = ({ waits }: Pick<ProcessSeen, "waits">): ThreadWait | null => waits[0] ?? null;

/** A process by its number and name, for people. Names are the sandbox's own words: they are cut and cleaned. */
export function nameOf({ pid, name, commandLine }: ProcessSeen): string {
  const text = plain(commandLine || name);
  return `process ${pid} (${text.length > 60 ? `${text.slice(0, 57)}…` : text})`;
}

/** Without what a terminal would take for orders. */
export const plain = (text: string): string => text.replaceAll(/\p{C}+/gu, " ").trim();
