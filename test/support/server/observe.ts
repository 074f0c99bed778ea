/** Observes processes of this machine from outside, using only /proc. */
import { readdirSync, readFileSync, readlinkSync } from "node:fs";
import { setTimeout as sleep } from "node:timers/promises";

/** The link targets of a process's open descriptors. */
export const descriptors = (pid: number): string[] =>
  readdirSync(`/proc/${pid}/fd`).flatMap((fd) => {
    try {
      return [readlinkSync(`/proc/${pid}/fd/${fd}`)];
    } catch {
      return [];
    }
  });

/**
 * Returns the same, sorted and without parts that differ from socket to socket, so that it can be compared over time.
 */
export const descriptorKinds = (pid: number): string[] =>
  descriptors(pid)
    .map((what) => what.replace(/:\[\d+\]$/, ""))
    .sort();

/** Returns the number of a keeper's connections: its sockets except the listening one. */
export const keeperLinks = (keeperPid: number): number =>
  descriptors(keeperPid).filter((what) => what.startsWith("socket:")).length - 1;

/** Returns the current resident memory. */
export function residentBytes(pid: number): number {
  const [, kilobytes] = /^VmRSS:\s+(\d+) kB$/m.exec(readFileSync(`/proc/${pid}/status`, "utf8")) ?? [];
  if (kilobytes === undefined) throw new Error(`process ${pid} has no resident memory`);
  return Number(kilobytes) * 1_024;
}

/** Command lines of the processes in a keeper's pid namespace, zombies included, the keeper excluded. */
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

/** Observes until the result has not changed for `quietMs`. */
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
