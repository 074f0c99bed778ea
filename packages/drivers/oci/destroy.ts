import { rmSync } from "node:fs";
import type { SandboxId } from "@holdfast/contract";
import type { Machine } from "./machine.ts";
import { mountsOf, readMounts } from "./mounts.ts";
import { findInit, leftoversOf, living } from "./observe.ts";

/**
 * Removes what is left of a sandbox whose processes have ended. Each part is removed by what it is, whatever became of
 * the others, so a launch that broke off anywhere is cleaned like one that ran; then everything is looked at again.
 */
export async function destroy(machine: Machine, id: SandboxId, signal: AbortSignal): Promise<void> {
  signal.throwIfAborted();
  const others = living([...machine.cgroups.helpers(id), ...machine.cgroups.members(id)]);
  if (others.length > 0 || findInit(machine, id) !== null) {
    throw new Error("processes of the sandbox are still running");
  }
  const places = machine.layout.sandbox(id);
  for (const mount of mountsOf(readMounts(), places.dir, places.marker)) {
    await machine.porter.unmount(mount.mountPoint);
  }
  await machine.cgroups.remove(id, signal);
  rmSync(places.runtimeState, { recursive: true, force: true });
  await machine.porter.removeTree(places.dir);
  const left = leftoversOf(machine, id, readMounts());
  if (left.length > 0) throw new Error(`still there after removal: ${left.join(", ")}`);
}
