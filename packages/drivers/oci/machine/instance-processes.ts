import type { SandboxId } from "@holdfast/contract";
import { type ProcessStat, readLiving, readNamespacePid } from "../proc/proc-files.ts";
import type { Machine } from "./machine.ts";
import { readInstance } from "./sandbox-notes.ts";

export interface Living extends ProcessStat {
  pid: number;
}

/**
 * Finds the first process of the sandbox's instance, which is PID 1 inside the instance. The driver's note of the
 * instance, a file on the host, contains the pid and start time of this process. If that process is still running,
 * returns it. Otherwise searches the sandbox's cgroups for a process that is PID 1 in its namespace: a launch that
 * ended before it wrote the note may have started one. Returns null if there is none.
 */
export function findInit(
  machine: Machine,
  id: SandboxId,
  note = readInstance(machine.layout, id),
): Living | null {
  if (note !== null && note.hostBootId === machine.facts.bootId) {
    const stat = readLiving(note.pid);
    if (stat?.startTime === note.startTime) return { pid: note.pid, ...stat };
  }
  for (const pid of machine.cgroups.members(id)) {
    const stat = readNamespacePid(pid)?.pid === 1 ? readLiving(pid) : null;
    if (stat !== null) return { pid, ...stat };
  }
  return null;
}

/** Finds all living processes in the sandbox's cgroups. */
export const findMembers = (machine: Machine, id: SandboxId): Living[] => living(machine.cgroups.members(id));

/**
 * Finds a process of a sandbox whose restore is in progress or was aborted. Such a process is in a pid namespace, but
 * still in the helper cgroup instead of the sandbox's cgroups.
 */
export const findHalfRestored = (machine: Machine, id: SandboxId): Living | null =>
  living(machine.cgroups.helpers(id)).find(({ pid }) => (readNamespacePid(pid)?.depth ?? 1) > 1) ?? null;

/** Whether any process or helper process of the sandbox is running. */
export const hasProcesses = (machine: Machine, id: SandboxId): boolean =>
  living([...machine.cgroups.helpers(id), ...machine.cgroups.members(id)]).length > 0 ||
  findInit(machine, id) !== null;

/** Returns the living processes among the given pids, with their state and start time. */
export function living(pids: readonly number[]): Living[] {
  return pids.flatMap((pid) => {
    const stat = readLiving(pid);
    return stat === null ? [] : [{ pid, ...stat }];
  });
}
