import { readdirSync, readFileSync, readlinkSync } from "node:fs";
import { join } from "node:path";
import { errnoOf, isGone } from "./errno.ts";

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

/** Null where there is no such process, or only what is left of one until its parent asks. */
export function readLiving(pid: number): ProcessStat | null {
  const text = readProc(pid, "stat");
  const stat = text === null ? null : parseStat(text);
  return stat === null || stat.state === "Z" || stat.state === "X" ? null : stat;
}

/** The process's id in its innermost pid namespace, and how many namespaces deep that is. */
export function readNamespacePid(pid: number): { pid: number; depth: number } | null {
  const ids = /^NSpid:\s*(.*)$/m.exec(readProc(pid, "status") ?? "")?.[1]?.split(/\s+/);
  const innermost = ids?.at(-1);
  return ids === undefined || innermost === undefined ? null : { pid: Number(innermost), depth: ids.length };
}

/** A process that has rights which we lack was not started by us, and hides what it is from us. */
const HIDDEN = ["EACCES", "EPERM"];

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

/** What it made the file system write so far, less what was thrown away again. Null where it is gone or hides it. */
export function readWritten(pid: number): number | null {
  const text = readProc(pid, "io", HIDDEN);
  if (text === null) return null;
  const field = (name: string) => Number(new RegExp(`^${name}: (\\d+)$`, "m").exec(text)?.[1] ?? 0);
  return Math.max(0, field("write_bytes") - field("cancelled_write_bytes"));
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

function readProc(pid: number, file: string, hidden: readonly string[] = []): string | null {
  try {
    return readFileSync(`/proc/${pid}/${file}`, "latin1");
  } catch (error) {
    if (isGone(error) || hidden.includes(errnoOf(error))) return null;
    throw error;
  }
}
