import { existsSync, readFileSync } from "node:fs";
import { constants } from "node:os";
import { join } from "node:path";
import type { InstallationId, SandboxId } from "@holdfast/contract";
import type { RestoreOrder } from "@holdfast/engine";
import { externalsOf } from "../drives/bound-mounts.ts";
import { stageDrives, unstageDrives } from "../drives/staged-drives.ts";
import {
  checkpointPlaces,
  imagesIn,
  verifyDependencies,
  verifySums,
  verifyWhole,
} from "../files/checkpoint-files.ts";
import { mountRoot } from "../files/overlay-root.ts";
import { requireWritten } from "../files/sandbox-files.ts";
import { readWritePaths } from "../files/write-paths.ts";
import { hasProcesses } from "../machine/instance-processes.ts";
import type { Machine } from "../machine/machine.ts";
import type { Manifest } from "../machine/manifest.ts";
import { seenPath } from "../machine/runtime.ts";
import { type InstanceNote, writeInstance } from "../machine/sandbox-notes.ts";
import { LaunchRefusal, StandbyRefusal, standbySteps } from "../machine/step-errors.ts";
import { resourceLimits } from "../proc/cgroup.ts";
import { isRootMounted, readMounts } from "../proc/mount-table.ts";
import { readLiving, readNamespacePid } from "../proc/proc-files.ts";
import { restoreArgv } from "./criu-argv.ts";
import { digestOf } from "./dump.ts";
import { makeWorkDir, removeWorkDir, requireCriu, runCriu } from "./run-criu.ts";
import { sourcePaths } from "./source-paths.ts";

const RESTORE_MS = 60_000;
const { SIGKILL } = constants.signals;

/**
 * Restores an instance from a standby checkpoint: mounts its root, then restores its memory. The restored instance
 * stays frozen.
 */
export async function restore(
  machine: Machine,
  order: RestoreOrder,
  signal: AbortSignal,
): Promise<InstanceNote> {
  const step = standbySteps(machine, order, signal);
  const { whole } = checkpointPlaces(machine.layout, order.sandboxId, order.checkpoint.id);
  const manifest = await step(
    { name: "checkpoint", code: "restore_checkpoint", complaint: "its checkpoint could not be read" },
    () => verify(machine, whole, order),
  );
  await step(
    { name: "root", code: "restore_root", complaint: "its root file system could not be mounted" },
    () => prepareRoot(machine, order, manifest, signal),
  );
  return step(
    { name: "restore", code: "restore_memory", complaint: "its memory could not be restored" },
    async () => {
      await restoreProcesses(machine, order, { images: imagesIn(whole), manifest }, signal);
      const instance = await verifyRestored(machine, order, manifest);
      if (manifest.takenIn !== undefined) await renameRestored(machine, order, instance, manifest.takenIn);
      removeWorkDir(machine, order.sandboxId);
      return instance;
    },
  );
}

/**
 * Replaces the installation id in the memory of a restored keeper. A sandbox that came from a backup needs this,
 * because its memory names the installation that was backed up. The keeper is still frozen at this time.
 */
async function renameRestored(
  { porter, installation }: Machine,
  { sandboxId, name }: RestoreOrder,
  { pid, startTime }: InstanceNote,
  takenIn: InstallationId,
): Promise<void> {
  const renamed = await porter.renameKeeper({
    ...{ pid, startTime, from: sandboxId, to: sandboxId, hostname: name },
    installation: { from: takenIn, to: installation },
  });
  if (renamed === "gone") throw new Error(`the restored process ${pid} has ended`);
}

async function verify(
  machine: Machine,
  whole: string,
  { sandboxId, checkpoint: { id, generation } }: RestoreOrder,
): Promise<Manifest> {
  const manifest = verifyWhole(machine.layout, whole, { sandboxId, id, generation });
  const config = join(machine.layout.sandbox(sandboxId).bundle, "config.json");
  verifyDependencies(machine, manifest, existsSync(config) ? digestOf(config) : null);
  await verifySums(machine, whole, manifest);
  return manifest;
}

/**
 * Mounts the root and verifies that it is mounted. Without a root CRIU would restore the processes onto an empty
 * directory, and every command would then fail.
 */
async function prepareRoot(
  machine: Machine,
  { sandboxId }: RestoreOrder,
  { image, imageVersion }: Manifest,
  signal: AbortSignal,
): Promise<void> {
  if (hasProcesses(machine, sandboxId)) {
    throw new StandbyRefusal("processes of an earlier instance are still there");
  }
  const places = machine.layout.sandbox(sandboxId);
  try {
    await requireWritten(machine, sandboxId, signal);
  } catch (error) {
    throw error instanceof LaunchRefusal ? new StandbyRefusal(error.message) : error;
  }
  await mountRoot(machine, machine.images.resolve(image, imageVersion), places, signal);
  if (!isRootMounted(readMounts(), places)) throw new Error("the root is not mounted");
}

/**
 * Restores processes from a checkpoint of this sandbox or, for a fork, of the source sandbox. The processes stay frozen
 * in the cgroups of this sandbox.
 */
export async function restoreProcesses(
  machine: Machine,
  { sandboxId, mounts = [] }: Pick<RestoreOrder, "sandboxId" | "mounts">,
  { images, manifest }: { images: string; manifest: Manifest },
  signal: AbortSignal,
): Promise<void> {
  const { layout, cgroups, porter } = machine;
  const criu = requireCriu(machine);
  const places = layout.sandbox(sandboxId);
  const work = makeWorkDir(machine, sandboxId);
  cgroups.makeParent();
  // CRIU can't create processes in a frozen cgroup, so the sandbox's cgroup is thawed here. The action script freezes
  // it again before the processes run.
  cgroups.requestThaw(sandboxId);
  try {
    const staged = await stageDrives(machine, sandboxId, manifest, mounts);
    const argv = restoreArgv({
      binary: criu.path,
      images,
      work,
      root: seenPath(machine, places.root),
      pidFile: join(work, "pid"),
      script: porter.actionScript,
      cgroups: isOwn(manifest, sandboxId) ? [] : cgroups.restoreRoots(sandboxId),
      externals: externalsOf(
        manifest.mounts,
        sourcePaths(machine, sandboxId, manifest.keeperVersion, staged),
      ),
    });
    const env = { HOLDFAST_FREEZER: cgroups.freezer(sandboxId) };
    await runCriu(machine, { sandboxId, argv, env, deadlineMs: RESTORE_MS, builds: true }, signal);
  } finally {
    await unstageDrives(machine, sandboxId);
  }
}

/** Whether the cgroups in CRIU's images are those of this sandbox in this installation. */
const isOwn = (manifest: Manifest, sandboxId: SandboxId): boolean =>
  manifest.sandboxId === sandboxId && manifest.takenIn === undefined;

/**
 * Verifies the restored processes from outside before they may run: pid, cgroup, freeze and limits. Writes the instance
 * note.
 */
export async function verifyRestored(
  machine: Machine,
  order: Pick<RestoreOrder, "sandboxId" | "generation" | "resources">,
  manifest: Manifest,
): Promise<InstanceNote> {
  const { layout, cgroups, facts, porter } = machine;
  const { sandboxId, generation } = order;
  const { criu } = layout.sandbox(sandboxId);
  const pid = Number(readFileSync(join(criu, "pid"), "utf8"));
  const stat = Number.isInteger(pid) && pid > 0 ? readLiving(pid) : null;
  if (stat === null) throw new Error(`the restored process ${pid} does not exist`);
  if (readNamespacePid(pid)?.pid !== 1)
    throw new Error(`the restored process ${pid} is not PID 1 of a sandbox`);
  if (!cgroups.members(sandboxId).includes(pid)) {
    // The restored process is outside the sandbox's cgroups. A stop looks only in these cgroups, so it would not find
    // the process, which would stay frozen forever. So the process is killed here.
    await porter.signal(pid, stat.startTime, SIGKILL);
    cgroups.adopt(sandboxId, pid);
    throw new Error("the restored process is not in the sandbox's cgroup");
  }
  if (!cgroups.isFrozen(sandboxId)) throw new Error("the restored process is not frozen");
  requireLimits(machine, order);
  const instance: InstanceNote = {
    sandboxId,
    generation,
    pid,
    startTime: stat.startTime,
    hostBootId: facts.bootId,
    keeperVersion: manifest.keeperVersion,
    writePaths: readWritePaths(layout.sandbox(sandboxId)),
  };
  writeInstance(layout, { ...instance, oomKillsBefore: cgroups.oomKills(sandboxId) });
  return instance;
}

function requireLimits(
  { cgroups, facts }: Machine,
  { sandboxId, resources }: Pick<RestoreOrder, "sandboxId" | "resources">,
): void {
  const wanted = resourceLimits(resources, facts);
  const found = cgroups.limits(sandboxId);
  if (found.memoryBytes !== wanted.memory.limit || found.pids !== wanted.pids.limit) {
    throw new Error(`the sandbox's limits are not in force: ${JSON.stringify(found)}`);
  }
}
