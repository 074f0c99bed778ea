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
  let targets = whatLives(machine, id);
  while (targets.length > 0) {
    signal.throwIfAborted();
    await Promise.all(targets.map(({ pid, startTime }) => machine.porter.signal(pid, startTime, SIGKILL)));
    machine.cgroups.unfreeze(id);
    await untilGone(machine, id, signal);
    targets = whatLives(machine, id);
  }
  return observeOne(machine, id, readMounts());
}

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
  while (machine.clock.now() < end && readLiving(init.pid)?.startTime === init.startTime) {
    await machine.clock.sleep(POLL_MS, signal);
  }
}

/**
 * The first process if it lives, else whatever is left. A launch that was broken off may have a helper under way: helpers
 * are looked for first, because what a helper makes is in the sandbox's cgroups before the helper is gone.
 */
function whatLives(machine: Machine, id: SandboxId): Target[] {
  const helpers = findHelpers(machine, id);
  const init = findInit(machine, id);
  return [...helpers, ...(init === null ? findMembers(machine, id) : [init])];
}

/** Those in the helper's cgroup; and, where no launch is known to have ended, any that carries the marker. */
function findHelpers(machine: Machine, id: SandboxId): Target[] {
  const helpers = living(machine.cgroups.helpers(id));
  if (existsSync(machine.layout.sandbox(id).instance)) return helpers;
  const marked = findMarked(machine.installation).filter(({ sandboxId }) => sandboxId === id);
  return [...helpers, ...marked];
}

async function untilGone(machine: Machine, id: SandboxId, signal: AbortSignal): Promise<void> {
  const end = machine.clock.now() + NAMESPACE_END_MS;
  while (machine.clock.now() < end) {
    const helpers = living(machine.cgroups.helpers(id));
    if (helpers.length + findMembers(machine, id).length === 0 && findInit(machine, id) === null) return;
    await machine.clock.sleep(POLL_MS, signal);
  }
}
