import type { ForkSource, Instance, LaunchOrder } from "@holdfast/engine";
import {
  imagesIn,
  savedPlaces,
  verifyDependencies,
  verifySums,
  verifyWhole,
  whileThere,
} from "./checkpoints.ts";
import { removeWorkDir } from "./criu-run.ts";
import type { Machine } from "./machine.ts";
import type { Manifest } from "./manifest.ts";
import { bringBack, readBack } from "./restore.ts";
import { takeOverMounts } from "./staged-drives.ts";

/** What a new sandbox is made of that does not begin from an image. */
export interface Template {
  source: ForkSource;
  manifest: Manifest;
  whole: string;
}

/** The checkpoint that is meant, whole and unchanged. Nothing is written to it: any number may be made of one. */
export async function openTemplate(machine: Machine, source: ForkSource): Promise<Template> {
  const { whole } = savedPlaces(machine.layout, source.sandboxId, source.id);
  const manifest = verifyWhole(machine.layout, whole, source);
  if (source.kind === "memory") {
    // It gets a bundle of its own, made for it and by nobody else.
    verifyDependencies(machine, manifest, manifest.config);
    await verifySums(machine, whole, manifest);
  }
  return { source, manifest, whole };
}

/**
 * The memory of the checkpoint as this sandbox: in its cgroups, on its files, with its control directory. It is called by
 * its own name, inside and to us, before any of it runs.
 */
export async function bringBackAs(
  machine: Machine,
  order: LaunchOrder,
  { source, manifest, whole }: Template,
  signal: AbortSignal,
): Promise<Instance> {
  const { porter, cgroups } = machine;
  const { sandboxId, name: hostname } = order;
  await whileThere(whole, () => bringBack(machine, order, { images: imagesIn(whole), manifest }, signal));
  const instance = readBack(machine, order, manifest);
  const { pid, startTime } = instance;
  const renamed = await porter.renameKeeper({
    pid,
    startTime,
    from: source.sandboxId,
    to: sandboxId,
    hostname,
  });
  if (renamed === "gone") throw new Error(`process ${pid} is not there`);
  removeWorkDir(machine, sandboxId);
  await takeOverMounts(machine, sandboxId, manifest, order.mounts ?? [], signal);
  await cgroups.thaw(sandboxId, signal);
  return instance;
}
