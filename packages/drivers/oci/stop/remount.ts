import { existsSync } from "node:fs";
import type { SandboxId } from "@holdfast/contract";
import { PorterError } from "@holdfast/keeper";
import { mountDisk } from "./disk.ts";
import { requireInit } from "./drive-mounts.ts";
import type { Machine } from "./machine.ts";
import { diskMountOf, isRootMounted, readMounts } from "./mounts.ts";
import type { Living } from "./observe.ts";

/**
 * Puts root and disk of a living instance back where the host sees them. Neither was lost: the instance has its own copy
 * of the root's mount, and that keeps the disk. So the root is cloned out of the instance, and the disk is mounted again
 * from the loop device that still has it. Nothing is made anew, and nothing inside is touched. What is there is left.
 */
export async function remount(machine: Machine, id: SandboxId, signal: AbortSignal): Promise<void> {
  signal.throwIfAborted();
  const init = requireInit(machine, id);
  await sayingWhat("its own disk can't be put back", () => remountDisk(machine, id));
  signal.throwIfAborted();
  await sayingWhat("its root can't be put back", () => remountRoot(machine, id, init));
}

async function remountDisk(machine: Machine, id: SandboxId): Promise<void> {
  const places = machine.layout.sandbox(id);
  if (!existsSync(places.disk) || diskMountOf(readMounts(), places) !== "missing") return;
  if (!(await mountDisk(machine, places))) throw new Error("the file that it is in is gone");
  if (diskMountOf(readMounts(), places) === "missing") throw new Error("it is not seen where it was put");
}

/** Whatever else is mounted in its place is taken off first. */
async function remountRoot({ layout, porter }: Machine, id: SandboxId, init: Living): Promise<void> {
  const places = layout.sandbox(id);
  if (isRootMounted(readMounts(), places)) return;
  await porter.unmount(places.root);
  const back = await porter.remount({ ...init, target: places.root });
  if (back === "gone") throw new Error("the instance is not there any more");
  if (isRootMounted(readMounts(), places)) return;
  await porter.unmount(places.root);
  throw new Error("what the instance has as its root is not what it was given");
}

/** For callers, who have no use for a path: neither the porter nor this file names one. */
async function sayingWhat(what: string, act: () => Promise<void>): Promise<void> {
  try {
    await act();
  } catch (error) {
    const isOurs = error instanceof PorterError || (error instanceof Error && !("code" in error));
    throw new Error(isOurs ? `${what}: ${error.message}` : what);
  }
}
