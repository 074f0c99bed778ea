import { readdirSync, readFileSync, readlinkSync } from "node:fs";
import { join } from "node:path";
import { errnoOf, isGone } from "./errno.ts";
import { fieldOf } from "./fields.ts";

export interface ProcessStat {
  /** One letter, as in ps. */
  state: string;
  /** In clock ticks since boot; with the pid it names one process within a boot. */
  startTime: string;
}

/** The name in field 2 may hold spaces and parentheses: fields are counted behind the last ')'. */
export function parseStat(text: string): ProcessStat | null {
  const fields = text.slice(text.lastIndexOf(")") + 2).split(" ");
  const state = fields[0];
  const startTime = fields[19];
  return state === undefined || startTime === undefined ? null : { state, startTime };
}

/** What /proc/PID/stat says besides. */
export interface ProcessFields extends ProcessStat {
  /** Its own words. */
  name: string;
  /** By the host's numbers. */
  parent: number;
  cpuMs: number;
  /** Pages that it was given without waiting for a disk. */
  faults: number;
  threads: number;
}

/** A clock tick of those that the kernel shows; the same on every architecture that there are sandboxes on. */
const TICK_MS = 10;

export function parseProcess(text: string): ProcessFields | null {
  const stat = parseStat(text);
  if (stat === null) return null;
  const end = text.lastIndexOf(")");
  const fields = text.slice(end + 2).split(" ");
  const field = (index: number) => Number(fields[index] ?? 0);
  return {
    ...stat,
    name: Buffer.from(text.slice(text.indexOf("(") + 1, end), "latin1").toString(),
    parent: field(1),
    faults: field(7),
    cpuMs: (field(11) + field(12)) * TICK_MS,
    threads: field(17),
  };
}

/** Null where there is no such process, or only what is left of one until its parent asks. */
export function readLiving(pid: number): ProcessStat | null {
  const text = readProc(pid, "stat");
  const stat = text === null ? null : parseStat(text);
  return stat === null || stat.state === "Z" || stat.state === "X" ? null : stat;
}

/** Its id in its innermost pid namespace, and what it has in memory: nothing, once it has ended. */
export function parseStatus(text: string): { insidePid: number; rssBytes: number } | null {
  const insidePid = /^NSpid:.*\s(\d+)$/m.exec(text)?.[1];
  if (insidePid === undefined) return null;
  const rss = /^VmRSS:\s*(\d+) kB$/m.exec(text)?.[1] ?? "0";
  return { insidePid: Number(insidePid), rssBytes: Number(rss) * 1_024 };
}

/** The process's id in its innermost pid namespace, and how many namespaces deep that is. */
export function readNamespacePid(pid: number): { pid: number; depth: number } | null {
  const ids = /^NSpid:\s*(.*)$/m.exec(readProc(pid, "status") ?? "")?.[1]?.split(/\s+/);
  const innermost = ids?.at(-1);
  return ids === undefined || innermost === undefined ? null : { pid: Number(innermost), depth: ids.length };
}

/** Of signals, as the kernel shows sets of them. */
const SIGSTOP_BIT = 1n << 18n;

/** Whether a signal that stops it is on its way to it, by its /proc/PID/status. */
export const parseStopPending = (status: string): boolean =>
  [...status.matchAll(/^(?:Sig|Shd)Pnd:\s*([0-9a-f]+)$/gm)].some(
    ([, set]) => (BigInt(`0x${set}`) & SIGSTOP_BIT) !== 0n,
  );

export const isStopPending = (pid: number): boolean => parseStopPending(readProc(pid, "status") ?? "");

/** A process that has rights which we lack was not started by us, and hides what it is from us. */
export const HIDDEN = ["EACCES", "EPERM"];

export function readExecutable(pid: number): string | null {
  try {
    return readlinkSync(`/proc/${pid}/exe`);
  } catch (error) {
    if (isGone(error) || HIDDEN.includes(errnoOf(error))) return null;
    throw error;
  }
}

export function readEnvironment(pid: number): Map<string, string> | null {
  const text = readProc(pid, "environ", HIDDEN);
  if (text === null) return null;
  const entry = (line: string): [string, string] => {
    const at = line.indexOf("=");
    return [line.slice(0, at), line.slice(at + 1)];
  };
  return new Map(text.split("\0").filter(Boolean).map(entry));
}

export const isRootOutside = (pid: number): boolean => /^Uid:\s*0\s/m.test(readProc(pid, "status") ?? "");

/** Null where it is gone. */
export function readParent(pid: number): number | null {
  const parent = /^PPid:\s*(\d+)$/m.exec(readProc(pid, "status") ?? "")?.[1];
  return parent === undefined ? null : Number(parent);
}

export const readCgroups = (pid: number): string | null => readProc(pid, "cgroup");

export function allPids(): number[] {
  return readdirSync("/proc")
    .filter((name) => /^[0-9]+$/.test(name))
    .map(Number);
}

export interface ProcessIo {
  /** What was fetched for it from a disk, and what it made a file system write, less what was thrown away again. */
  readBytes: number;
  writtenBytes: number;
  /** Calls that read or wrote, whatever that was. */
  calls: number;
}

export const parseIo = (text: string): ProcessIo => ({
  readBytes: fieldOf(text, "read_bytes:"),
  writtenBytes: Math.max(0, fieldOf(text, "write_bytes:") - fieldOf(text, "cancelled_write_bytes:")),
  calls: fieldOf(text, "syscr:") + fieldOf(text, "syscw:"),
});

/** With that of the children that it has asked about. Null where it is gone or hides it. */
export function readIo(pid: number): ProcessIo | null {
  const text = readProc(pid, "io", HIDDEN);
  return text === null ? null : parseIo(text);
}

/** How many sockets a process has open. */
export function countSockets(pid: number): number {
  const directory = `/proc/${pid}/fd`;
  return readdirSync(directory).filter((fd) => readLink(join(directory, fd))?.startsWith("socket:")).length;
}

function readLink(path: string): string | null {
  try {
    return readlinkSync(path);
  } catch (error) {
    if (isGone(error)) return null;
    throw error;
  }
}

export const readBootId = (): string => readFileSync("/proc/sys/kernel/random/boot_id", "utf8").trim();

export function readProc(pid: number, file: string, hidden: readonly string[] = []): string | null {
  try {
    return readFileSync(`/proc/${pid}/${file}`, "latin1");
  } catch (error) {
    if (isGone(error) || hidden.includes(errnoOf(error))) return null;
    throw error;
  }
}
