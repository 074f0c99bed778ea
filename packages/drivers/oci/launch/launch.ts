import { existsSync, readFileSync } from "node:fs";
import { join } from "node:path";
import type { Instance, LaunchOrder } from "@holdfast/engine";
import { copyFiles, makeFiles, takeOverFiles } from "./files.ts";
import { bringBackAs, openTemplate } from "./fork.ts";
import { setIpcFromOutside } from "./kernel.ts";
import { stepper } from "./launch-step.ts";
import type { SandboxPlaces } from "./layout.ts";
import type { Machine } from "./machine.ts";
import { HELPER_MARK, helperMark } from "./marked.ts";
import { readLiving } from "./processes.ts";
import { writeInstance } from "./record.ts";
import { mountRoot } from "./root.ts";
import { runtimeArgv } from "./runtime.ts";
import { reopen, unstageDrives } from "./staged-drives.ts";

const RUNTIME_MS = 30_000;
const LOG_BYTES = 2_000;

/**
 * Files, root, runtime, process: in that order, each step leaving its marks before the next begins, so that whatever a
 * broken-off launch made is found and removed by id alone.
 */
export async function launch(machine: Machine, order: LaunchOrder, signal: AbortSignal): Promise<Instance> {
  const places = machine.layout.sandbox(order.sandboxId);
  const step = stepper(machine, order, signal);
  const { fork } = order;
  await unstageDrives(machine, order.sandboxId);
  const template =
    fork === undefined
      ? null
      : await step("checkpoint", "its checkpoint can't be used", () => openTemplate(machine, fork));
  const image = await step("files", "its files could not be made", () => {
    if (order.restart) return takeOverFiles(machine, order, signal);
    return template === null
      ? makeFiles(machine, order, signal)
      : copyFiles(machine, order, template, signal);
  });
  await step("root", "its root file system could not be mounted", async () => {
    await mountRoot(machine, image, places, signal);
    if (template !== null) await reopen(machine, order.sandboxId, template.manifest, order.mounts ?? []);
  });
  if (template?.source.kind === "memory") {
    return step("memory", "its memory could not be brought back", () =>
      bringBackAs(machine, order, template, signal),
    );
  }
  await step("runtime", "the container runtime did not start it", () => startRuntime(machine, order, signal));
  const instance = await step("keeper", "its first process ended at once", () => readBack(machine, order));
  if (!machine.facts.ipcSetInside) {
    await step("ipc", "its shared memory could not be bounded", () =>
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
    // Where it puts a copy of itself for the time of its start, in place of /tmp: one that is killed leaves it.
    _LIBCONTAINER_STATEDIR: places.bundle,
  };
  try {
    const deadline = AbortSignal.any([signal, AbortSignal.timeout(RUNTIME_MS)]);
    const argv = runtimeArgv(machine, order.sandboxId, machine.cgroups.makeHelper(order.sandboxId));
    const helper = { name: machine.facts.runtime.name, argv, env, stdio: machine.layout.nullDevice };
    const { status } = await machine.porter.run(helper, deadline);
    if (status !== 0) throw new Error(`it ended with ${status}: ${readLog(places)}`);
  } finally {
    machine.cgroups.removeHelper(order.sandboxId);
  }
}

function readLog(places: SandboxPlaces): string {
  const path = join(places.bundle, "log");
  return existsSync(path) ? readFileSync(path, "utf8").slice(-LOG_BYTES).trim() : "it said nothing";
}

function readBack(machine: Machine, order: LaunchOrder): Instance {
  const places = machine.layout.sandbox(order.sandboxId);
  const pid = Number(readFileSync(join(places.bundle, "pid"), "utf8"));
  const stat = Number.isInteger(pid) && pid > 0 ? readLiving(pid) : null;
  if (stat === null) throw new Error(`process ${pid} is not there`);
  const instance: Instance = {
    sandboxId: order.sandboxId,
    generation: order.generation,
    pid,
    startTime: stat.startTime,
    hostBootId: machine.facts.bootId,
    keeperVersion: machine.keeper.version,
  };
  writeInstance(machine.layout, instance);
  return instance;
}
