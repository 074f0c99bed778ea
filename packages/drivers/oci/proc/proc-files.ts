import { readdirSync, readFileSync, readlinkSync } from "node:fs";
import { join } from "node:path";
import { errnoOf, isGone } from "./errno.ts";
import { fieldOf } from "./fields.ts";

export interface ProcessStat {
  /** State letter, as shown by `ps`. */
  state: string;
  /** Start time in clock ticks since boot. Pid and start time together identify one process within a boot. */
  startTime: string;
}

/**
 * Parses /proc/PID/stat. The name in field 2 can contain spaces and parentheses, so fields are counted after the last
 * ')'.
 */
export function parseStat(text: string): ProcessStat | null {
  const fields = text.slice(text.lastIndexOf(")") + 2).split(" ");
  const state = fields[0];
  const startTime = fields[19];
  return state === undefined || startTime === undefined ? null : { state, startTime };
}

/** Further fields of /proc/PID/stat. */
interface ProcessFields extends ProcessStat {
  /** Name of the process, which it can choose itself. */
  name: string;
  /** Pid of the parent process, as seen by the host. */
  parent: number;
  cpuMs: number;
  /** Minor page faults: page faults that needed no read from disk. */
  faults: number;
  threads: number;
}

/** Length of a clock tick in /proc files; the same on every supported architecture. */
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

/** Reads the stat of a running process. Returns null if there is no such process, or if it is a zombie. */
export function readLiving(pid: number): ProcessStat | null {
  const text = readProc(pid, "stat");
  const stat = text === null ? null : parseStat(text);
  return stat === null || stat.state === "Z" || stat.state === "X" ? null : stat;
}

/** Parses the pid in the innermost pid namespace and the resident memory, which is 0 for an ended process. */
export function parseStatus(text: string): { insidePid: number; rssBytes: number } | null {
  const insidePid = /^NSpid:.*\s(\d+)$/m.exec(text)?.[1];
  if (insidePid === undefined) return null;
  const rss = /^VmRSS:\s*(\d+) kB$/m.exec(text)?.[1] ?? "0";
  return { insidePid: Number(insidePid), rssBytes: Number(rss) * 1_024 };
}

/** The process's pid in its innermost pid namespace, and the nesting depth of that namespace (1 is the host's). */
export function readNamespacePid(pid: number): { pid: number; depth: number } | null {
  const ids = /^NSpid:\s*(.*)$/m.exec(readProc(pid, "status") ?? "")?.[1]?.split(/\s+/);
  const innermost = ids?.at(-1);
  return ids === undefined || innermost === undefined ? null : { pid: Number(innermost), depth: ids.length };
}

/** The bit that stands for SIGSTOP in the signal sets of /proc/PID/status. */
const SIGSTOP_BIT = 1n << 18n;

/** Whether a SIGSTOP is pending, for the thread or for its whole process, according to /proc/PID/status. */
export const parseStopPending = (status: string): boolean =>
  [...status.matchAll(/^(?:Sig|Shd)Pnd:\s*([0-9a-f]+)$/gm)].some(
    ([, set]) => (BigInt(`0x${set}`) & SIGSTOP_BIT) !== 0n,
  );

export const isStopPending = (pid: number): boolean => parseStopPending(readProc(pid, "status") ?? "");

/**
 * Error codes of a denied read of /proc files: the process has more privileges than this server, so this server can't
 * have started it.
 */
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

/** Pid of the parent process; null if the process no longer exists. */
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

interface ProcessIo {
  /** Bytes read from disk. */
  readBytes: number;
  /** Bytes written to disk, minus bytes that were deleted before they reached the disk. */
  writtenBytes: number;
  /** Number of read and write system calls, on any kind of file. */
  calls: number;
}

export const parseIo = (text: string): ProcessIo => ({
  readBytes: fieldOf(text, "read_bytes:"),
  writtenBytes: Math.max(0, fieldOf(text, "write_bytes:") - fieldOf(text, "cancelled_write_bytes:")),
  calls: fieldOf(text, "syscr:") + fieldOf(text, "syscw:"),
});

/** Reads the I/O of a process and of its reaped children. Returns null if the process has ended or denies access. */
export function readIo(pid: number): ProcessIo | null {
  const text = readProc(pid, "io", HIDDEN);
  return text === null ? null : parseIo(text);
}

/** Counts the open sockets of a process. */
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

/** Flag of a socket that listens, in /proc/PID/net/unix. */
const LISTENING = "00010000";

/**
 * Whether a Unix socket of this file name listens in the network namespace of a process. The kernel keeps the name of a
 * socket whose file was removed.
 */
export const hasListener = (pid: number, name: string): boolean =>
  (readProc(pid, "net/unix") ?? "").split("\n").some((line) => {
    const [, , , flags, , , , path] = line.trim().split(/\s+/);
    return flags === LISTENING && path?.endsWith(`/${name}`) === true;
  });
