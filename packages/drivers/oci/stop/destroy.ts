import { rmSync } from "node:fs";
import type { SandboxId } from "@holdfast/contract";
import { unmake } from "./checkpoints.ts";
import type { Machine } from "./machine.ts";
import { readMounts } from "./mounts.ts";
import { hasProcesses, leftoversOf } from "./observe.ts";
import { removeRuntimeState, unmountAll } from "./unmount.ts";

/**
 * Removes what is left of a sandbox whose processes have ended. Each part is removed by what it is, whatever became of
 * the others, so a launch that broke off anywhere is cleaned like one that ran; then everything is looked at again. It
 * writes nothing: a full disk does not keep it from making room.
 */
export async function destroy(machine: Machine, id: SandboxId, signal: AbortSignal): Promise<void> {
  signal.throwIfAborted();
  if (hasProcesses(machine, id)) throw new Error("processes of the sandbox are still running");
  const places = machine.layout.sandbox(id);
  unmake(places.saved, () => true);
  // Before its mount: whoever wants to read from the disk can't mount it again.
  rmSync(places.diskImage, { force: true });
  await unmountAll(machine, places, signal);
  await machine.cgroups.remove(id, signal);
  await removeRuntimeState(machine, places);
  await machine.porter.removeTree(places.dir);
  const left = leftoversOf(machine, id, readMounts());
  if (left.length > 0) throw new Error(`still there after removal: ${left.join(", ")}`);
}
