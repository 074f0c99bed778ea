import { constants } from "node:os";
import type { SandboxId } from "@holdfast/contract";
import type { Machine } from "./machine.ts";
import { findInit } from "./observe.ts";
import { isStopPending } from "./processes.ts";

const { SIGCONT } = constants.signals;

/**
 * Lets an instance run on, whatever keeps it: the freezer of its cgroup, or a signal that stopped its keeper. What one of
 * its own commands stopped is that command's affair. While it is frozen, a keeper does not show that it was stopped before,
 * and one that was frozen first is stopped as soon as it is thawed: so it is looked at before and after.
 */
export async function thaw(machine: Machine, id: SandboxId, signal: AbortSignal): Promise<void> {
  const frozen = findInit(machine, id);
  const isStopping = frozen !== null && isStopPending(frozen.pid);
  await machine.cgroups.thaw(id, signal);
  const keeper = findInit(machine, id);
  if (keeper === null || (keeper.state !== "T" && !isStopping)) return;
  await machine.porter.signal(keeper.pid, keeper.startTime, SIGCONT);
}
