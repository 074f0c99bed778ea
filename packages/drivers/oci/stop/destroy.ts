import { rmSync } from "node:fs";
import type { SandboxId } from "@holdfast/contract";
import { unmake } from "../files/checkpoint-files.ts";
import { removeRuntimeState, unmountAll } from "../files/unmount.ts";
import { hasProcesses } from "../machine/instance-processes.ts";
import type { Machine } from "../machine/machine.ts";
import { leftoversOf } from "../observe/observe.ts";
import { readMounts } from "../proc/mount-table.ts";

/**
 * Removes everything of a sandbox whose processes have ended, and verifies that nothing is left. Each part is removed
 * independently of the others, so the remains of a launch that was aborted at any step are removed too. The removal
 * writes no files, so it also works on a full disk.
 */
export async function destroy(machine: Machine, id: SandboxId, signal: AbortSignal): Promise<void> {
  signal.throwIfAborted();
  if (hasProcesses(machine, id)) throw new Error("processes of the sandbox are still running");
  const places = machine.layout.sandbox(id);
  unmake(places.saved, () => true);
  // The disk image is removed before the disk is unmounted, so that a concurrent reader can't mount it again.
  rmSync(places.diskImage, { force: true });
  await unmountAll(machine, places, signal);
  await machine.cgroups.remove(id, signal);
  await removeRuntimeState(machine, places);
  await machine.porter.removeTree(places.dir);
  const left = leftoversOf(machine, id, readMounts());
  if (left.length > 0) throw new Error(`left after the removal: ${left.join(", ")}`);
}
