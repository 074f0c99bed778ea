import { existsSync, readFileSync } from "node:fs";
import { join } from "node:path";
import type { LaunchOrder } from "@holdfast/engine";
import { unsealMountPoints, unstageDrives } from "../drives/staged-drives.ts";
import { mountRoot } from "../files/overlay-root.ts";
import { copyFiles, makeFiles, takeOverFiles } from "../files/sandbox-files.ts";
import { readWritePaths } from "../files/write-paths.ts";
import type { SandboxPlaces } from "../machine/layout.ts";
import type { Machine } from "../machine/machine.ts";
import { runtimeArgv } from "../machine/runtime.ts";
import { type InstanceNote, writeInstance } from "../machine/sandbox-notes.ts";
import { launchSteps } from "../machine/step-errors.ts";
import { setIpcFromOutside } from "../machine/sysctls.ts";
import { HELPER_MARK, helperMark } from "../proc/marked-processes.ts";
import { readLiving } from "../proc/proc-files.ts";
import { openTemplate, restoreFork } from "./fork.ts";

const RUNTIME_MS = 30_000;
const LOG_BYTES = 2_000;

/**
 * Launches an instance in steps: files, root, runtime, keeper. Everything that a step creates carries the sandbox's id
 * before the next step begins, so the remains of an aborted launch can be found and removed by the id alone.
 */
export async function launch(
  machine: Machine,
  order: LaunchOrder,
  signal: AbortSignal,
): Promise<InstanceNote> {
  const places = machine.layout.sandbox(order.sandboxId);
  const step = launchSteps(machine, order, signal);
  const { fork } = order;
  await unstageDrives(machine, order.sandboxId);
  const template =
    fork === undefined
      ? null
      : await step("checkpoint", "its checkpoint can't be used", () => openTemplate(machine, fork));
  const image = await step("files", "its files could not be created", () => {
    if (order.restart) return takeOverFiles(machine, order, signal);
    return template === null
      ? makeFiles(machine, order, signal)
      : copyFiles(machine, order, template, signal);
  });
  await step("root", "its root file system could not be mounted", async () => {
    await mountRoot(machine, image, places, signal);
    if (template !== null)
      await unsealMountPoints(machine, order.sandboxId, template.manifest, order.mounts ?? []);
  });
  if (template?.source.kind === "memory") {
    return step("memory", "its memory could not be restored", () =>
      restoreFork(machine, order, template, signal),
    );
  }
  await step("runtime", "the container runtime did not start it", () => startRuntime(machine, order, signal));
  const instance = await step("keeper", "its first process ended at once", () =>
    recordInstance(machine, order),
  );
  if (!machine.facts.ipcSetInside) {
    await step("ipc", "its limits on shared memory could not be set", () =>
      setIpcFromOutside(instance.pid, signal),
    );
  }
  return instance;
}

async function startRuntime(machine: Machine, order: LaunchOrder, signal: AbortSignal): Promise<void> {
  const places = machine.layout.sandbox(order.sandboxId);
  const env = {
    PATH: "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    [HELPER_MARK]: helperMark(machine.installation, order.sandboxId),
    // Directory in which the runtime makes a temporary copy of itself. It is not /tmp, because a runtime that is killed
    // leaves its copy behind.
    _LIBCONTAINER_STATEDIR: places.bundle,
  };
  try {
    const deadline = AbortSignal.any([signal, AbortSignal.timeout(RUNTIME_MS)]);
    const argv = runtimeArgv(machine, order.sandboxId, machine.cgroups.makeHelper(order.sandboxId));
    const helper = { name: machine.facts.runtime.name, argv, env, stdio: machine.layout.nullDevice };
    const { status } = await machine.porter.run(helper, deadline);
    if (status !== 0) throw new Error(`the runtime ended with ${status}: ${readLog(places)}`);
  } finally {
    machine.cgroups.removeHelper(order.sandboxId);
  }
}

function readLog(places: SandboxPlaces): string {
  const path = join(places.bundle, "log");
  return existsSync(path) ? readFileSync(path, "utf8").slice(-LOG_BYTES).trim() : "its log is empty";
}

/** Reads the pid that the runtime reported, checks that the process lives, and writes the instance note. */
function recordInstance(machine: Machine, order: LaunchOrder): InstanceNote {
  const places = machine.layout.sandbox(order.sandboxId);
  const pid = Number(readFileSync(join(places.bundle, "pid"), "utf8"));
  const stat = Number.isInteger(pid) && pid > 0 ? readLiving(pid) : null;
  if (stat === null) throw new Error(`the launched process ${pid} does not exist`);
  const instance: InstanceNote = {
    sandboxId: order.sandboxId,
    generation: order.generation,
    pid,
    startTime: stat.startTime,
    hostBootId: machine.facts.bootId,
    keeperVersion: machine.keeper.version,
    writePaths: readWritePaths(places),
  };
  writeInstance(machine.layout, instance);
  return instance;
}
