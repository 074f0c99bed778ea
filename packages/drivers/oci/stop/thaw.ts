import { constants } from "node:os";
import type { SandboxId } from "@holdfast/contract";
import { findInit } from "../machine/instance-processes.ts";
import type { Machine } from "../machine/machine.ts";
import { isStopPending } from "../proc/proc-files.ts";

const { SIGCONT } = constants.signals;

/**
 * Makes an instance run again: thaws its cgroup, and sends SIGCONT to its keeper if that was stopped by a signal. Other
 * processes that were stopped by signals stay stopped. The keeper is checked before and after the thaw: a frozen
 * process does not show that it was stopped before the freeze, and a stop signal that arrived during the freeze takes
 * effect only at the thaw.
 */
export async function thaw(machine: Machine, id: SandboxId, signal: AbortSignal): Promise<void> {
  const frozen = findInit(machine, id);
  const isStopping = frozen !== null && isStopPending(frozen.pid);
  await machine.cgroups.thaw(id, signal);
  const keeper = findInit(machine, id);
  if (keeper === null || (keeper.state !== "T" && !isStopping)) return;
  await machine.porter.signal(keeper.pid, keeper.startTime, SIGCONT);
}
