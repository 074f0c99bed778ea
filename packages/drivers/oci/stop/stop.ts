import { existsSync } from "node:fs";
import { constants } from "node:os";
import type { SandboxId } from "@holdfast/contract";
import type { Observation } from "@holdfast/engine";
import type { Machine } from "./machine.ts";
import { findMarked } from "./marked.ts";
import { readMounts } from "./mounts.ts";
import { findInit, findMembers, type Living, living, observeOne } from "./observe.ts";
import { readLiving } from "./processes.ts";

type Target = Pick<Living, "pid" | "startTime">;

const { SIGKILL, SIGTERM } = constants.signals;
const POLL_MS = 2;
/** The kernel ends everything in a pid namespace with its first process; what is left after this is killed singly. */
const NAMESPACE_END_MS = 500;

/**
 * Ends every process of a sandbox and says what is seen then. A frozen process takes no signal on cgroup v1 before it is
 * thawed, so the kill comes first and the thaw after it: nothing runs in between.
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
 * A launch that was broken off, with its server even, may have a helper under way. Each enters a cgroup that was made
 * for it before it does anything else: once that is gone none can begin, and whatever those before it made is in the
 * sandbox's own cgroups.
 */
async function endHelpers(machine: Machine, id: SandboxId, signal: AbortSignal): Promise<void> {
  for (;;) {
    const helpers = findHelpers(machine, id);
    if (helpers.length === 0 && machine.cgroups.removeHelper(id)) return;
    // Without any left there is nothing to thaw for: what is frozen may be on disk by now, and must not run again. Nor must what
    // a helper holds by tracing it, such as the half of a restore: it is held by its cgroup, and killed with the helper.
    if (helpers.length > 0) {
      machine.cgroups.hold(id);
      await kill(machine, id, [...helpers, ...allThatLives(machine, id)]);
    }
    await settled(machine, () => !helpers.some(isLiving), signal);
    await machine.clock.sleep(POLL_MS, signal);
  }
}

async function endInstance(machine: Machine, id: SandboxId, signal: AbortSignal): Promise<void> {
  for (;;) {
    const targets = whatLives(machine, id);
    if (targets.length === 0) return;
    await kill(machine, id, machine.cgroups.isFrozen(id) ? allThatLives(machine, id) : targets);
    await settled(machine, () => whatLives(machine, id).length === 0, signal);
  }
}

async function kill(machine: Machine, id: SandboxId, targets: readonly Target[]): Promise<void> {
  await Promise.all(targets.map(({ pid, startTime }) => machine.porter.signal(pid, startTime, SIGKILL)));
  machine.cgroups.unfreeze(id);
}

/** Waits for it, but no longer than the kernel should take. */
async function settled(machine: Machine, isDone: () => boolean, signal: AbortSignal): Promise<void> {
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
  machine.cgroups.unfreeze(id);
  const end = machine.clock.now() + graceMs;
  while (machine.clock.now() < end && isLiving(init)) await machine.clock.sleep(POLL_MS, signal);
}

/** The first process if it lives, else whatever is left. */
function whatLives(machine: Machine, id: SandboxId): Target[] {
  const init = findInit(machine, id);
  return init === null ? findMembers(machine, id) : [init];
}

/**
 * What is frozen must not run again, not even for the moment that the kernel takes to end it with its first process: its
 * memory may be on disk by then, and would know nothing of what was done in that moment.
 */
function allThatLives(machine: Machine, id: SandboxId): Target[] {
  const members = findMembers(machine, id);
  const init = findInit(machine, id);
  return init === null || members.some(({ pid }) => pid === init.pid) ? members : [init, ...members];
}

/** Those in the helper's cgroup; and, where no launch is known to have ended, any that carries the marker. */
function findHelpers(machine: Machine, id: SandboxId): Target[] {
  const helpers = living(machine.cgroups.helpers(id));
  if (existsSync(machine.layout.sandbox(id).instance)) return helpers;
  const marked = findMarked(machine.installation).filter(({ sandboxId }) => sandboxId === id);
  return [...helpers, ...marked];
}
