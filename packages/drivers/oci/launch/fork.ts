import type { ForkSource, LaunchOrder } from "@holdfast/engine";
import { restoreProcesses, verifyRestored } from "../checkpoint/restore.ts";
import { removeWorkDir } from "../checkpoint/run-criu.ts";
import { replaceMounts } from "../drives/staged-drives.ts";
import {
  imagesIn,
  savedPlaces,
  verifyDependencies,
  verifySums,
  verifyWhole,
  whileThere,
} from "../files/checkpoint-files.ts";
import type { Machine } from "../machine/machine.ts";
import type { Manifest } from "../machine/manifest.ts";
import type { InstanceNote } from "../machine/sandbox-notes.ts";

/** A verified checkpoint from which a fork starts. */
interface Template {
  source: ForkSource;
  manifest: Manifest;
  whole: string;
}

/**
 * Verifies that the checkpoint is complete and unchanged. Forks only read a checkpoint, so any number of forks can use
 * it.
 */
export async function openTemplate(machine: Machine, source: ForkSource): Promise<Template> {
  const { whole } = savedPlaces(machine.layout, source.sandboxId, source.id);
  const manifest = verifyWhole(machine.layout, whole, source);
  if (source.kind === "memory") {
    // The manifest's own configuration is passed, so the comparison of configurations always succeeds. It would fail
    // otherwise, because a fork has another bundle than the checkpoint.
    verifyDependencies(machine, manifest, manifest.config);
    await verifySums(machine, whole, manifest);
  }
  return { source, manifest, whole };
}

/**
 * Restores the memory of a checkpoint as a new sandbox, which has the fork's cgroups, files and control directory.
 * Before any process runs, the keeper gets the fork's sandbox id and host name, and the fork's drives replace those of
 * the source.
 */
export async function restoreFork(
  machine: Machine,
  order: LaunchOrder,
  { source, manifest, whole }: Template,
  signal: AbortSignal,
): Promise<InstanceNote> {
  const { porter, cgroups } = machine;
  const { sandboxId, name: hostname } = order;
  await whileThere(whole, () =>
    restoreProcesses(machine, order, { images: imagesIn(whole), manifest }, signal),
  );
  const instance = await verifyRestored(machine, order, manifest);
  const { pid, startTime } = instance;
  const renamed = await porter.renameKeeper({
    pid,
    startTime,
    from: source.sandboxId,
    to: sandboxId,
    hostname,
    ...(manifest.takenIn === undefined
      ? {}
      : { installation: { from: manifest.takenIn, to: machine.installation } }),
  });
  if (renamed === "gone") throw new Error(`the restored process ${pid} has ended`);
  removeWorkDir(machine, sandboxId);
  await replaceMounts(machine, sandboxId, manifest, order.mounts ?? [], signal);
  await cgroups.thaw(sandboxId, signal);
  return instance;
}
