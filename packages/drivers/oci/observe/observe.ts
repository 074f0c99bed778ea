import { existsSync } from "node:fs";
import type { Cause, SandboxId } from "@holdfast/contract";
import type { Identity, Observation } from "@holdfast/engine";
import { namesIn } from "../files/checkpoint-files.ts";
import { DIRECTORY_LOST, lostWritePaths } from "../files/write-paths.ts";
import { identityOf } from "../machine/instance-identity.ts";
import { findHalfRestored, findInit, findMembers } from "../machine/instance-processes.ts";
import type { Machine } from "../machine/machine.ts";
import type { InstanceNote } from "../machine/sandbox-notes.ts";
import { errnoOf } from "../proc/errno.ts";
import { loopsIn } from "../proc/loop-devices.ts";
import { diskMountOf, isWritable, type Mount, mountOf, mountsOf, rootMount } from "../proc/mount-table.ts";
import { ObservationMemory } from "./observation-memory.ts";
import { observeMounts } from "./observe-mounts.ts";

/**
 * OOM kills to subtract from the cgroup's counter: a restored instance may use a cgroup that has already counted kills
 * of an earlier instance.
 */
const oomKillsBefore = ({ facts }: Machine, note: InstanceNote | null): number =>
  note?.hostBootId === facts.bootId ? (note.oomKillsBefore ?? 0) : 0;

/**
 * Observes one instance from outside: its process, cgroup, mount table, and the paths that it writes to. The result is
 * `unknown` if one of these can't be read. A caller that observes repeatedly passes the memory of earlier observations.
 */
export function observeOne(
  machine: Machine,
  id: SandboxId,
  mounts: readonly Mount[],
  memory = new ObservationMemory(),
): Observation {
  const at = machine.clock.now();
  try {
    const note = memory.note(machine, id);
    const init = findInit(machine, id, note);
    const living = init ?? findMembers(machine, id)[0] ?? findHalfRestored(machine, id);
    if (living === null) return { seen: "absent", at, leftovers: leftoversOf(machine, id, mounts) };
    const freezer = machine.cgroups.freezerState(id);
    const frozen = freezer === "frozen";
    const stopped = living.state === "T" || living.state === "t";
    const root = rootOf(machine, id, mounts, memory);
    const disk = note?.writePaths?.diskImage === null ? null : diskOf(machine, id, mounts);
    return {
      seen: "present",
      at,
      identity: identityOf({ ...living, hostBootId: machine.facts.bootId }),
      state: frozen ? "frozen" : stopped ? "stopped" : "running",
      root,
      oomKills: machine.cgroups.oomKills(id) - oomKillsBefore(machine, note),
      mounts: observeMounts(machine, id, living.pid, mounts),
      problems: problemsOf({
        keeper: init !== null,
        mounted: root !== null,
        stopped,
        frozen,
        disk,
        lost: lostPaths(machine, { id, keeperPid: living.pid }, note, disk),
        ungoverned: init === null ? [] : memory.ungoverned(machine, id, init, freezer === "missing"),
        isHostDiskWritable: isStateWritable(machine, mounts),
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
  /** One cause for each path that the instance writes to and that is missing or replaced. */
  lost: readonly Cause[];
  /**
   * The cgroup controllers whose limits do not apply to the keeper, because the keeper is outside the sandbox's cgroup.
   */
  ungoverned: readonly string[];
  isHostDiskWritable: boolean;
}

/**
 * Returns the problems. Callers see the first one as the sandbox's problem. A failed disk of the host comes first, then
 * lost files, because a restart repairs neither: without the lost files the instance could not start again.
 */
function problemsOf(seen: Seen): Cause[] {
  const problems: Cause[] = [];
  if (!seen.isHostDiskWritable) {
    const message =
      "the host's file system that holds its files can no longer be written to. It works again once the host's disk does.";
    problems.push({ code: "host_disk_failed", message });
  }
  problems.push(...seen.lost);
  if (!seen.keeper) {
    problems.push({ code: "keeper_missing", message: "the keeper has ended, but other processes are left" });
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
    problems.push({ code: "disk_failed", message: "the sandbox's own disk can no longer be written to" });
  }
  if (seen.ungoverned.length > 0) {
    const message = `the keeper was moved out of its cgroup, so limits on ${seen.ungoverned.join(", ")} are not in force`;
    problems.push({ code: "cgroup_gone", message });
  }
  return problems;
}

/**
 * Returns one cause for each path that the instance writes to and that no longer refers to the file or directory that
 * was there at the launch. The driver's note of the instance, a file in the sandbox's directory, says what each path
 * referred to at the launch. Returns no cause if the note does not list the paths or is from an earlier boot of the
 * host. If there is no note, the only possible cause is that the sandbox's directory itself is missing.
 */
function lostPaths(
  machine: Machine,
  { id, keeperPid }: { id: SandboxId; keeperPid: number },
  note: InstanceNote | null,
  disk: Seen["disk"],
): readonly Cause[] {
  const places = machine.layout.sandbox(id);
  if (note === null && !existsSync(places.dir)) return [DIRECTORY_LOST];
  if (note?.writePaths === undefined || note.hostBootId !== machine.facts.bootId) return [];
  const isDiskUsable = disk === null || disk === "mounted";
  return lostWritePaths(places, note.writePaths, { isDiskUsable, keeperPid });
}

const writable = new WeakMap<readonly Mount[], boolean>();

/** Whether the file system of the state directory accepts writes. The result is computed once for each mount table. */
function isStateWritable({ layout }: Machine, mounts: readonly Mount[]): boolean {
  const known = writable.get(mounts);
  if (known !== undefined) return known;
  const mount = mountOf(mounts, layout.sandboxes);
  const isUsable = mount === undefined || isWritable(mount);
  writable.set(mounts, isUsable);
  return isUsable;
}

/** State of the sandbox's own disk; null if it has none. */
function diskOf(machine: Machine, id: SandboxId, mounts: readonly Mount[]): Seen["disk"] {
  const places = machine.layout.sandbox(id);
  return existsSync(places.disk) ? diskMountOf(mounts, places) : null;
}

/**
 * Identity of the sandbox's root as mounted on the host; null if the root is not mounted or another mount covers it.
 */
function rootOf(
  machine: Machine,
  id: SandboxId,
  mounts: readonly Mount[],
  memory: ObservationMemory,
): Identity | null {
  const places = machine.layout.sandbox(id);
  const mount = rootMount(mounts, places);
  return mount === null ? null : memory.root(id, mount.id, places.root);
}

/** Everything on the host that belongs to a sandbox, except processes, described in words for error messages. */
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
