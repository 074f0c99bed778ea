import { existsSync, statSync } from "node:fs";
import type { Cause, SandboxId } from "@holdfast/contract";
import type { Identity, Observation } from "@holdfast/engine";
import { namesIn } from "./checkpoints.ts";
import { observeMounts } from "./drive-mounts.ts";
import { errnoOf } from "./errno.ts";
import { loopsIn } from "./loops.ts";
import type { Machine } from "./machine.ts";
import { diskMountOf, isRootMounted, type Mount, mountsOf } from "./mounts.ts";
import { type ProcessStat, readLiving, readNamespacePid } from "./processes.ts";
import { type InstanceNote, readInstance } from "./record.ts";

export interface Living extends ProcessStat {
  pid: number;
}

/**
 * The instance's first process. The note that launch made is believed where that very process lives; without it the
 * cgroups tell, so that an instance whose launch was never answered is found as well.
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

/** Every living process in the sandbox's cgroups. */
export const findMembers = (machine: Machine, id: SandboxId): Living[] => living(machine.cgroups.members(id));

/** A process of a sandbox that is being put together, or was left half done: it has not come to its own cgroups yet. */
const findHalfRestored = (machine: Machine, id: SandboxId): Living | null =>
  living(machine.cgroups.helpers(id)).find(({ pid }) => (readNamespacePid(pid)?.depth ?? 1) > 1) ?? null;

/** A cgroup that the instance was restored into counts on from the one before it. */
const oomKillsBefore = ({ facts }: Machine, note: InstanceNote | null): number =>
  note?.hostBootId === facts.bootId ? (note.oomKillsBefore ?? 0) : 0;

/** Whether anything of it runs, helpers included. */
export const hasProcesses = (machine: Machine, id: SandboxId): boolean =>
  living([...machine.cgroups.helpers(id), ...machine.cgroups.members(id)]).length > 0 ||
  findInit(machine, id) !== null;

export function living(pids: readonly number[]): Living[] {
  return pids.flatMap((pid) => {
    const stat = readLiving(pid);
    return stat === null ? [] : [{ pid, ...stat }];
  });
}

/** Looks at one instance from outside: process, cgroup, mount table. What can't be read makes it unknown. */
export function observeOne(machine: Machine, id: SandboxId, mounts: readonly Mount[]): Observation {
  const at = machine.clock.now();
  try {
    const note = readInstance(machine.layout, id);
    const init = findInit(machine, id, note);
    const living = init ?? findMembers(machine, id)[0] ?? findHalfRestored(machine, id);
    if (living === null) return { seen: "absent", at, leftovers: leftoversOf(machine, id, mounts) };
    const frozen = machine.cgroups.isFrozen(id);
    const stopped = living.state === "T" || living.state === "t";
    const root = rootOf(machine, id, mounts);
    return {
      seen: "present",
      at,
      pid: living.pid,
      startTime: living.startTime,
      state: frozen ? "frozen" : stopped ? "stopped" : "running",
      root,
      oomKills: machine.cgroups.oomKills(id) - oomKillsBefore(machine, note),
      mounts: observeMounts(machine, id, living.pid, mounts),
      problems: problemsOf({
        keeper: init !== null,
        mounted: root !== null,
        stopped,
        frozen,
        disk: diskOf(machine, id, mounts),
      }),
    };
  } catch (error) {
    return {
      seen: "unknown",
      at,
      why: errnoOf(error) || (error instanceof Error ? error.name : "unreadable"),
    };
  }
}

interface Seen {
  keeper: boolean;
  mounted: boolean;
  stopped: boolean;
  frozen: boolean;
  disk: ReturnType<typeof diskMountOf> | null;
}

function problemsOf(seen: Seen): Cause[] {
  const problems: Cause[] = [];
  if (!seen.keeper) {
    problems.push({ code: "keeper_missing", message: "processes are left, but not the keeper" });
  }
  if (seen.stopped) problems.push({ code: "keeper_stopped", message: "the keeper was stopped by a signal" });
  if (seen.frozen) problems.push({ code: "frozen", message: "all processes are frozen" });
  if (!seen.mounted) {
    problems.push({ code: "root_unmounted", message: "the root file system is not mounted on the host" });
  }
  if (seen.disk === "missing") {
    problems.push({ code: "disk_unmounted", message: "the sandbox's own disk is not mounted on the host" });
  }
  if (seen.disk === "failed") {
    problems.push({ code: "disk_failed", message: "the sandbox's own disk can't be written to any more" });
  }
  return problems;
}

/** Null where it has none of its own. */
function diskOf(machine: Machine, id: SandboxId, mounts: readonly Mount[]): Seen["disk"] {
  const places = machine.layout.sandbox(id);
  return existsSync(places.disk) ? diskMountOf(mounts, places) : null;
}

/** Of the root as the host sees it, if what is mounted there on top is ours. */
function rootOf(machine: Machine, id: SandboxId, mounts: readonly Mount[]): Identity | null {
  const places = machine.layout.sandbox(id);
  if (!isRootMounted(mounts, places)) return null;
  const { dev, ino } = statSync(places.root, { bigint: true });
  return { dev: String(dev), ino: String(ino) };
}

/** What is there of a sandbox besides processes, in words for people. */
export function leftoversOf(machine: Machine, id: SandboxId, mounts: readonly Mount[]): string[] {
  const { dir, marker, runtimeState, checkpoints } = machine.layout.sandbox(id);
  return [
    ...mountsOf(mounts, [dir, runtimeState], marker).map(() => "mount"),
    ...loopsIn(dir).map(() => "loop device"),
    ...machine.cgroups.existing(id).map((name) => `cgroup ${name}`),
    ...(existsSync(runtimeState) ? ["runtime state"] : []),
    ...namesIn(checkpoints).map((name) => `checkpoint ${name}`),
    ...(existsSync(dir) ? ["directory"] : []),
  ];
}
