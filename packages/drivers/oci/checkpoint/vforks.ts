import { readdirSync } from "node:fs";
import type { SandboxId } from "@holdfast/contract";
import type { Machine } from "../machine/machine.ts";
import { StandbyRefusal } from "../machine/step-errors.ts";
import { VFORK_WAITS } from "../proc/blocking-syscalls.ts";
import { readProc } from "../proc/proc-files.ts";
import { parsePlace } from "../proc/thread-waits.ts";

const VFORKS_MS = 3_000;
const VFORKS_POLL_MS = 1;
const REFREEZE_MS = 5_000;

/**
 * Waits until no thread of a frozen sandbox is inside vfork. Such a thread sleeps in the kernel until its child
 * executes a program or exits. The frozen child does neither, and CRIU can't stop the sleeping thread: CRIU would abort
 * the dump after 10 s. Shells, Python and Node start programs with vfork, so a busy sandbox is often frozen at such a
 * moment. This function thaws the sandbox repeatedly for a short time, in which the child continues.
 */
export async function waitForVforks(
  { cgroups, clock }: Machine,
  id: SandboxId,
  signal: AbortSignal,
): Promise<void> {
  const isInVfork = () => cgroups.members(id).some(hasVforkWait);
  const end = clock.now() + VFORKS_MS;
  while (isInVfork()) {
    if (clock.now() > end)
      throw new StandbyRefusal("a program has called vfork, and its child executes no program");
    try {
      await cgroups.thaw(id, signal);
      await clock.sleep(VFORKS_POLL_MS, signal);
    } finally {
      await cgroups.freeze(id, AbortSignal.timeout(REFREEZE_MS));
    }
  }
}

/** Whether a thread of the process waits inside vfork; false if the process has ended. */
function hasVforkWait(pid: number): boolean {
  return threadsOf(pid).some((thread) =>
    VFORK_WAITS.has(parsePlace(readProc(pid, `task/${thread}/wchan`) ?? "")),
  );
}

function threadsOf(pid: number): string[] {
  try {
    return readdirSync(`/proc/${pid}/task`);
  } catch {
    return [];
  }
}
