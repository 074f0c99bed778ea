import { existsSync, readFileSync } from "node:fs";
import { join } from "node:path";
import type { Instance, RestoreOrder } from "@holdfast/engine";
import { externalsOf } from "./bound-mounts.ts";
import { resourceLimits } from "./cgroup.ts";
import { digestOf } from "./checkpoint.ts";
import { checkpointPlaces, imagesIn, verifyDependencies, verifySums, verifyWhole } from "./checkpoints.ts";
import { restoreArgv } from "./criu.ts";
import { makeWorkDir, removeWorkDir, requireCriu, runCriu } from "./criu-run.ts";
import { requireWritten } from "./files.ts";
import { LaunchRefusal } from "./launch-step.ts";
import type { Machine } from "./machine.ts";
import type { Manifest } from "./manifest.ts";
import { isRootMounted, readMounts } from "./mounts.ts";
import { hasProcesses } from "./observe.ts";
import { readLiving, readNamespacePid } from "./processes.ts";
import { writeInstance } from "./record.ts";
import { mountRoot } from "./root.ts";
import { seenPath } from "./runtime.ts";
import { sourcePaths } from "./source-paths.ts";
import { stageDrives, unstageDrives } from "./staged-drives.ts";
import { StandbyRefusal } from "./standby-refusal.ts";
import { standbySteps } from "./standby-step.ts";

const RESTORE_MS = 60_000;

/** The parts of a root that must be there, then the memory that goes with them; frozen when it resolves. */
export async function restore(machine: Machine, order: RestoreOrder, signal: AbortSignal): Promise<Instance> {
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
    { name: "restore", code: "restore_memory", complaint: "its memory could not be brought back" },
    async () => {
      await bringBack(machine, order, { images: imagesIn(whole), manifest }, signal);
      const instance = readBack(machine, order, manifest);
      removeWorkDir(machine, order.sandboxId);
      return instance;
    },
  );
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

/** CRIU restores onto a directory that is not mounted without complaint, and every command fails then. */
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

/** Builds up the processes of a checkpoint, of this sandbox or of another, in this sandbox's cgroups, and leaves them frozen. */
export async function bringBack(
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
  // Processes of a frozen cgroup can't be built up: it is thawed now, and frozen by the script before they run.
  cgroups.unfreeze(sandboxId);
  try {
    const staged = await stageDrives(machine, sandboxId, manifest, mounts);
    const argv = restoreArgv({
      binary: criu.path,
      images,
      work,
      root: seenPath(machine, places.root),
      pidFile: join(work, "pid"),
      script: porter.actionScript,
      cgroup: manifest.sandboxId === sandboxId ? null : cgroups.path(sandboxId),
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

/** What came back is looked at from outside before anyone may let it run. */
export function readBack(
  machine: Machine,
  order: Pick<RestoreOrder, "sandboxId" | "generation" | "resources">,
  manifest: Manifest,
): Instance {
  const { layout, cgroups, facts } = machine;
  const { sandboxId, generation } = order;
  const { criu } = layout.sandbox(sandboxId);
  const pid = Number(readFileSync(join(criu, "pid"), "utf8"));
  const stat = Number.isInteger(pid) && pid > 0 ? readLiving(pid) : null;
  if (stat === null) throw new Error(`process ${pid} is not there`);
  if (readNamespacePid(pid)?.pid !== 1) throw new Error(`process ${pid} is not the first of a sandbox`);
  if (!cgroups.members(sandboxId).includes(pid)) throw new Error("what was restored is not in its cgroup");
  if (!cgroups.isFrozen(sandboxId)) throw new Error("what was restored is not frozen");
  requireLimits(machine, order);
  const instance: Instance = {
    sandboxId,
    generation,
    pid,
    startTime: stat.startTime,
    hostBootId: facts.bootId,
    keeperVersion: manifest.keeperVersion,
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
    throw new Error(`its limits are not in force: ${JSON.stringify(found)}`);
  }
}
