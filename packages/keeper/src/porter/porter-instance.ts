/** Results of the porter about running instances. */
import type { Identity } from "@holdfast/engine";
import { PorterError } from "./spawner.ts";

/** A process of an instance. It is used only if its start time matches, because its pid may have been reused. */
export interface ProcessName {
  pid: number;
  startTime: string;
}

/** The command line and the exec id of a process, as the process itself states them; both are untrusted. */
export interface ProcessCommandLine {
  /** The exec id in the process's environment; empty if there is no valid one. */
  execId: string;
  /** Arguments joined by spaces, truncated if long. */
  commandLine: string;
}

const REMOUNTED = /^remounted (?<dev>\d+) (?<ino>\d+)\n$/;
const COMMAND_LINE = /^(?<pid>\d+) (?<execId>[A-Za-z0-9_-]+) (?<line>(?:[0-9a-f]{2})*)$/;
const NO_EXEC = "-";

const unexpected = () => new PorterError("unexpected output from the porter", null);

export function readRemounted(output: string): Identity {
  const { dev, ino } = REMOUNTED.exec(output)?.groups ?? {};
  if (dev === undefined || ino === undefined) throw unexpected();
  return { dev, ino };
}

/** Replaces the NUL separators of arguments with spaces. */
const lineOf = (hex: string): string =>
  Buffer.from(hex, "hex").toString().replace(/\0+$/, "").replaceAll("\0", " ");

export function readCommandLines(output: string): Map<number, ProcessCommandLine> {
  const words = new Map<number, ProcessCommandLine>();
  for (const text of output.split("\n").filter(Boolean)) {
    const { pid, execId, line } = COMMAND_LINE.exec(text)?.groups ?? {};
    if (execId === undefined || line === undefined) throw unexpected();
    words.set(Number(pid), { execId: execId === NO_EXEC ? "" : execId, commandLine: lineOf(line) });
  }
  return words;
}
