import { existsSync } from "node:fs";
import { constants } from "node:os";
import type { SandboxId } from "@holdfast/contract";
import type { Observation } from "@holdfast/engine";
import { findInit, findMembers, type Living, living } from "../machine/instance-processes.ts";
import type { Machine } from "../machine/machine.ts";
import { observeOne } from "../observe/observe.ts";
import { findMarked } from "../proc/marked-processes.ts";
import { readMounts } from "../proc/mount-table.ts";
import { readLiving } from "../proc/proc-files.ts";

type Target = Pick<Living, "pid" | "startTime">;

const { SIGKILL, SIGTERM } = constants.signals;
const POLL_MS = 2;
/** Time for the kernel to end a pid namespace after its PID 1 died. Processes left after that are killed one by one. */
const NAMESPACE_END_MS = 500;

/**
 * Ends every process of a sandbox and returns the observation afterwards. On cgroup v1 a frozen process handles no
 * signal until it is thawed. So SIGKILL is sent before the thaw, and the process ends without running again.
 */
export async function stop(
  machine: Machine,
  id: SandboxId,
  graceMs: number,
  signal: AbortSignal,
): Promise<Observation> {
  if (graceMs > 0) await terminate(machine, id, graceMs, signal);
  await endHelpers(machine, id, signal);
  await endInstance(machine, id, signal);
  return observeOne(machine, id, readMounts());
}

/**
 * Ends helpers of an aborted launch or restore, including those of a server that has died. A helper enters the helper
 * cgroup before it does anything else. So when that cgroup has been removed, no further helper can start, and
 * everything that earlier helpers created is in the sandbox's own cgroups.
 */
async function endHelpers(machine: Machine, id: SandboxId, signal: AbortSignal): Promise<void> {
  for (;;) {
    const helpers = findHelpers(machine, id);
    if (helpers.length === 0 && machine.cgroups.removeHelper(id)) return;
    // `kill` thaws the sandbox, so it is called only if there are helpers: the memory of a frozen sandbox may already
    // be on disk, and the sandbox must not run again. A helper may also keep processes stopped with ptrace, for example
    // in a restore. These processes must not run either, so their cgroup is frozen first, and they are killed together
    // with the helper.
    if (helpers.length > 0) {
      machine.cgroups.requestFreeze(id);
      await kill(machine, id, [...helpers, ...allLiving(machine, id)]);
    }
    await waitUntil(machine, () => !helpers.some(isLiving), signal);
    await machine.clock.sleep(POLL_MS, signal);
  }
}

async function endInstance(machine: Machine, id: SandboxId, signal: AbortSignal): Promise<void> {
  for (;;) {
    const targets = killTargets(machine, id);
    if (targets.length === 0) return;
    await kill(machine, id, machine.cgroups.isFrozen(id) ? allLiving(machine, id) : targets);
    await waitUntil(machine, () => killTargets(machine, id).length === 0, signal);
  }
}

async function kill(machine: Machine, id: SandboxId, targets: readonly Target[]): Promise<void> {
  await Promise.all(targets.map(({ pid, startTime }) => machine.porter.signal(pid, startTime, SIGKILL)));
  machine.cgroups.requestThaw(id);
}

/** Waits until `isDone` returns true, but no longer than the kernel should take to end a pid namespace. */
async function waitUntil(machine: Machine, isDone: () => boolean, signal: AbortSignal): Promise<void> {
  const end = machine.clock.now() + NAMESPACE_END_MS;
  while (!isDone() && machine.clock.now() < end) await machine.clock.sleep(POLL_MS, signal);
}

const isLiving = ({ pid, startTime }: Target): boolean => readLiving(pid)?.startTime === startTime;

async function terminate(
  machine: Machine,
  id: SandboxId,
  graceMs: number,
  signal: AbortSignal,
): Promise<void> {
  const init = findInit(machine, id);
  if (init === null) return;
  await machine.porter.signal(init.pid, init.startTime, SIGTERM);
  machine.cgroups.requestThaw(id);
  const end = machine.clock.now() + graceMs;
  while (machine.clock.now() < end && isLiving(init)) await machine.clock.sleep(POLL_MS, signal);
}

/**
 * Returns PID 1 if it lives, because the kernel ends all other processes with it; otherwise returns all living
 * processes.
 */
function killTargets(machine: Machine, id: SandboxId): Target[] {
  const init = findInit(machine, id);
  return init === null ? findMembers(machine, id) : [init];
}

/**
 * Returns all living processes of a frozen sandbox, which are killed one by one. If only PID 1 were killed, the others
 * would run until the kernel ends them. Their memory may be on disk already, and would not include the effects of that
 * run.
 */
function allLiving(machine: Machine, id: SandboxId): Target[] {
  const members = findMembers(machine, id);
  const init = findInit(machine, id);
  return init === null || members.some(({ pid }) => pid === init.pid) ? members : [init, ...members];
}

/**
 * Returns the processes in the helper cgroup. If there is no instance note, a launch may be unfinished, so processes
 * with the sandbox's marker are returned too.
 */
function findHelpers(machine: Machine, id: SandboxId): Target[] {
  const helpers = living(machine.cgroups.helpers(id));
  if (existsSync(machine.layout.sandbox(id).instance)) return helpers;
  const marked = findMarked(machine.installation).filter(({ sandboxId }) => sandboxId === id);
  return [...helpers, ...marked];
}
