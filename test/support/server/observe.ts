/** Processes of this machine, seen from outside, by the kernel's word alone. */
import { readdirSync, readFileSync, readlinkSync } from "node:fs";
import { setTimeout as sleep } from "node:timers/promises";

/** What each open descriptor of a process is. */
export const descriptors = (pid: number): string[] =>
  readdirSync(`/proc/${pid}/fd`).flatMap((fd) => {
    try {
      return [readlinkSync(`/proc/${pid}/fd/${fd}`)];
    } catch {
      return [];
    }
  });

/** The same, sorted, with nothing in it that differs between one socket and the next: to be compared over time. */
export const descriptorKinds = (pid: number): string[] =>
  descriptors(pid)
    .map((what) => what.replace(/:\[\d+\]$/, ""))
    .sort();

/** Connections that a keeper has: its sockets but for the one it listens on. */
export const keeperLinks = (keeperPid: number): number =>
  descriptors(keeperPid).filter((what) => what.startsWith("socket:")).length - 1;

/** Resident memory now. */
export function residentBytes(pid: number): number {
  const [, kilobytes] = /^VmRSS:\s+(\d+) kB$/m.exec(readFileSync(`/proc/${pid}/status`, "utf8")) ?? [];
  if (kilobytes === undefined) throw new Error(`process ${pid} has no resident memory`);
  return Number(kilobytes) * 1_024;
}

/** The command lines of all that lives in a keeper's pid namespace, itself left out; the dead that nobody waited for too. */
export function processesBeside(keeperPid: number): string[] {
  const home = readlinkSync(`/proc/${keeperPid}/ns/pid`);
  return readdirSync("/proc")
    .filter((name) => /^\d+$/.test(name) && Number(name) !== keeperPid)
    .flatMap((pid) => {
      try {
        if (readlinkSync(`/proc/${pid}/ns/pid`) !== home) return [];
        return [readFileSync(`/proc/${pid}/cmdline`, "utf8").replaceAll("\0", " ").trim() || `[${pid}]`];
      } catch {
        return [];
      }
    });
}

/** What is seen once it has not changed for a while. */
export async function atRest<Seen>(
  look: () => Seen,
  { quietMs, withinMs = 60_000 }: { quietMs: number; withinMs?: number },
): Promise<Seen> {
  const giveUpAt = performance.now() + withinMs;
  let [seen, since] = [look(), performance.now()];
  while (performance.now() - since < quietMs && performance.now() < giveUpAt) {
    await sleep(100);
    const now = look();
    if (JSON.stringify(now) !== JSON.stringify(seen)) [seen, since] = [now, performance.now()];
  }
  return seen;
}
