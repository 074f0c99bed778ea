import { existsSync } from "node:fs";
import type { SandboxId } from "@holdfast/contract";
import { PorterError } from "@holdfast/keeper";
import { requireInit } from "../drives/drive-mounts.ts";
import { mountDisk } from "../files/disk.ts";
import type { Living } from "../machine/instance-processes.ts";
import type { Machine } from "../machine/machine.ts";
import { diskMountOf, isRootMounted, readMounts } from "../proc/mount-table.ts";

/**
 * Mounts the root and the disk of a running instance on the host again, if these mounts are missing there. No data was
 * lost: the instance has its own copy of the root's mount, which keeps the disk in use. So the root's mount is cloned
 * from the instance, and the disk is mounted again from its loop device. Mounts inside the instance and existing mounts
 * on the host are left unchanged.
 */
export async function remount(machine: Machine, id: SandboxId, signal: AbortSignal): Promise<void> {
  signal.throwIfAborted();
  const init = requireInit(machine, id);
  await withContext("its own disk can't be mounted again", () => remountDisk(machine, id));
  signal.throwIfAborted();
  await withContext("its root can't be mounted again", () => remountRoot(machine, id, init));
}

async function remountDisk(machine: Machine, id: SandboxId): Promise<void> {
  const places = machine.layout.sandbox(id);
  if (!existsSync(places.disk) || diskMountOf(readMounts(), places) !== "missing") return;
  if (!(await mountDisk(machine, places))) throw new Error("the disk image is missing");
  if (diskMountOf(readMounts(), places) === "missing")
    throw new Error("the disk is not in the mount table afterwards");
}

/** Mounts the instance's root on the host again. Anything else that is mounted at its path is unmounted first. */
async function remountRoot({ layout, porter }: Machine, id: SandboxId, init: Living): Promise<void> {
  const places = layout.sandbox(id);
  if (isRootMounted(readMounts(), places)) return;
  await porter.unmount(places.root);
  const back = await porter.remount({ ...init, target: places.root });
  if (back === "gone") throw new Error("the instance has ended");
  if (isRootMounted(readMounts(), places)) return;
  await porter.unmount(places.root);
  throw new Error("the instance has another root than it was launched with");
}

/**
 * Prefixes errors with the name of the action that failed. Callers see the message, so it must contain no path of the
 * host. Only errors of the porter and of this file are quoted, because these contain no such path.
 */
async function withContext(what: string, act: () => Promise<void>): Promise<void> {
  try {
    await act();
  } catch (error) {
    const isOurs = error instanceof PorterError || (error instanceof Error && !("code" in error));
    throw new Error(isOurs ? `${what}: ${error.message}` : what);
  }
}
