/** What the porter says of living instances. */
import type { Identity } from "@holdfast/engine";
import { PorterError } from "./spawner.ts";

/** A process of an instance; reached only with this start time. */
export interface ProcessName {
  pid: number;
  startTime: string;
}

/** What a process says of itself: hostile, both. */
export interface ProcessWords {
  /** From its environment; empty where there is none that could be an exec's. */
  execId: string;
  /** With spaces between its arguments; cut off where it is long. */
  commandLine: string;
}

const REMOUNTED = /^remounted (?<dev>\d+) (?<ino>\d+)\n$/;
const WORDS = /^(?<pid>\d+) (?<execId>[A-Za-z0-9_-]+) (?<line>(?:[0-9a-f]{2})*)$/;
const NO_EXEC = "-";

const unexpected = () => new PorterError("the porter said something else than was expected", null);

export function readRemounted(output: string): Identity {
  const { dev, ino } = REMOUNTED.exec(output)?.groups ?? {};
  if (dev === undefined || ino === undefined) throw unexpected();
  return { dev, ino };
}

/** Arguments are separated by NUL; people read spaces. */
const lineOf = (hex: string): string =>
  Buffer.from(hex, "hex").toString().replace(/\0+$/, "").replaceAll("\0", " ");

export function readWords(output: string): Map<number, ProcessWords> {
  const words = new Map<number, ProcessWords>();
  for (const text of output.split("\n").filter(Boolean)) {
    const { pid, execId, line } = WORDS.exec(text)?.groups ?? {};
    if (execId === undefined || line === undefined) throw unexpected();
    words.set(Number(pid), { execId: execId === NO_EXEC ? "" : execId, commandLine: lineOf(line) });
  }
  return words;
}
