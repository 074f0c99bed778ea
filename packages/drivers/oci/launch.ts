import {
  chmodSync,
  chownSync,
  closeSync,
  existsSync,
  mkdirSync,
  openSync,
  readFileSync,
  rmSync,
  writeFileSync,
} from "node:fs";
import { join } from "node:path";
import { HoldfastError } from "@holdfast/contract";
import type { Instance, LaunchOrder } from "@holdfast/engine";
import { PorterError } from "@holdfast/keeper";
import { errnoOf } from "./errno.ts";
import { runHelper } from "./helper.ts";
import type { ImageOnDisk } from "./images.ts";
import { setIpcFromOutside } from "./kernel.ts";
import { PASSABLE_BY_GROUP, type SandboxPlaces } from "./layout.ts";
import type { Machine } from "./machine.ts";
import { HELPER_MARK, helperMark } from "./marked.ts";
import { readMounts } from "./mounts.ts";
import { readLiving } from "./processes.ts";
import { writeInstance, writeOrder } from "./record.ts";
import { runtimeArgv } from "./runtime.ts";

const RUNTIME_MS = 30_000;
const LOG_BYTES = 2_000;

/** One step of a launch failed. The message is for callers and names no path; the detail is for the operator. */
export class LaunchStepError extends Error {
  readonly code: string;
  readonly detail: string;
  constructor(step: string, message: string, error: unknown) {
    super(message, error instanceof PorterError ? { cause: error } : {});
    this.name = "LaunchStepError";
    this.code = `launch_${step}`;
    this.detail = error instanceof Error ? error.message : String(error);
  }
}

/**
 * Files, root, runtime, process: in that order, each step leaving its marks before the next begins, so that whatever a
 * broken-off launch made is found and removed by id alone.
 */
export async function launch(machine: Machine, order: LaunchOrder, signal: AbortSignal): Promise<Instance> {
  const places = machine.layout.sandbox(order.sandboxId);
  const image = machine.images.resolve(order.image);
  const step = stepper(machine, order, signal);
  const fresh = await step("files", "its directories could not be made", () =>
    makeFiles(machine, order, image),
  );
  await step("root", "its root file system could not be mounted", () =>
    mountRoot(machine, image, places, fresh),
  );
  await step("runtime", "the container runtime did not start it", () => startRuntime(machine, order, signal));
  const instance = await step("keeper", "its first process ended at once", () => readBack(machine, order));
  if (!machine.facts.ipcSetInside) {
    await step("ipc", "its shared memory could not be bounded", () =>
      setIpcFromOutside(instance.pid, signal),
    );
  }
  return instance;
}

function stepper(machine: Machine, order: LaunchOrder, signal: AbortSignal) {
  return async <Result>(
    name: string,
    complaint: string,
    act: () => Promise<Result> | Result,
  ): Promise<Result> => {
    signal.throwIfAborted();
    try {
      return await act();
    } catch (error) {
      const { sandboxId, generation } = order;
      const cause = new LaunchStepError(name, complaint, error);
      machine.log.warn({ sandboxId, generation, step: name, detail: cause.detail }, "launch failed");
      if (signal.aborted) throw signal.reason;
      throw new HoldfastError(errnoOf(error) === "ENOSPC" ? "disk_full" : "launch_failed", {
        sandboxId,
        cause,
      });
    }
  };
}

/** True where the sandbox has no files of its own yet. */
function makeFiles(machine: Machine, order: LaunchOrder, image: ImageOnDisk): boolean {
  const { layout, idBase, keeper } = machine;
  const places = layout.sandbox(order.sandboxId);
  const fresh = mkdirSync(places.dir, { recursive: true }) !== undefined;
  if (!fresh) forgetInstance(places);
  const { sandboxId, generation } = order;
  writeOrder(layout, {
    sandboxId,
    generation,
    image: image.image.name,
    imageVersion: image.version,
    keeperVersion: keeper.version,
  });
  chownSync(places.dir, 0, idBase);
  chmodSync(places.dir, PASSABLE_BY_GROUP);
  for (const dir of [places.root, places.work, places.bundle])
    mkdirSync(dir, { recursive: true, mode: 0o700 });
  if (fresh) {
    makeOwned(places.upper, 0o755, idBase);
    makeOwned(places.control, 0o700, idBase);
    nameHost(places, order.name, idBase);
  }
  writeFileSync(join(places.bundle, "config.json"), configFor(machine, order, image));
  return fresh;
}

/** An earlier generation's notes are no evidence for this one. */
function forgetInstance(places: SandboxPlaces): void {
  rmSync(places.instance, { force: true });
  rmSync(places.runtimeState, { recursive: true, force: true });
  rmSync(places.bundle, { recursive: true, force: true });
}

function makeOwned(dir: string, mode: number, id: number): void {
  mkdirSync(dir);
  chownSync(dir, id, id);
  chmodSync(dir, mode);
}

/** The sandbox's own name resolves inside. Only ever done in an upper layer that no sandbox has written to. */
function nameHost(places: SandboxPlaces, name: string, id: number): void {
  const etc = join(places.upper, "etc");
  makeOwned(etc, 0o755, id);
  const files: [string, string][] = [
    ["hostname", `${name}\n`],
    ["hosts", `127.0.0.1 localhost\n::1 localhost\n127.0.1.1 ${name}\n`],
  ];
  for (const [file, text] of files) {
    writeFileSync(join(etc, file), text, { mode: 0o644 });
    chownSync(join(etc, file), id, id);
  }
}

function configFor(machine: Machine, order: LaunchOrder, image: ImageOnDisk): string {
  const { layout, alias } = machine;
  const places = layout.sandbox(order.sandboxId);
  const seen = (path: string) => (alias === null ? path : alias + path.slice(layout.stateDir.length));
  return machine.bundle({
    sandboxId: order.sandboxId,
    hostname: order.name,
    resources: order.resources,
    cgroupsPath: machine.cgroups.path(order.sandboxId),
    root: seen(places.root),
    keeperDir: seen(machine.keeper.dir),
    control: seen(places.control),
    hostDirs: image.hostDirs.flatMap((dir) => [dir, ...mountPointsBelow(dir)]),
  });
}

const mountPointsBelow = (dir: string): string[] =>
  readMounts()
    .map(({ mountPoint }) => mountPoint)
    .filter((path) => path.startsWith(`${dir}/`));

async function mountRoot(
  machine: Machine,
  image: ImageOnDisk,
  places: SandboxPlaces,
  fresh: boolean,
): Promise<void> {
  const { marker, root: target, upper, work } = places;
  const isOurs = (mount: { mountPoint: string; source: string }) =>
    mount.mountPoint === target && mount.source === marker;
  if (!fresh && readMounts().some(isOurs)) return;
  await machine.porter.mountOverlay({ marker, target, lower: [image.rootfs], upper, work });
}

async function startRuntime(machine: Machine, order: LaunchOrder, signal: AbortSignal): Promise<void> {
  const places = machine.layout.sandbox(order.sandboxId);
  const stdio = openSync(machine.layout.nullDevice, "r+");
  const env = {
    PATH: "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    [HELPER_MARK]: helperMark(machine.installation, order.sandboxId),
  };
  try {
    const deadline = AbortSignal.any([signal, AbortSignal.timeout(RUNTIME_MS)]);
    const argv = runtimeArgv(machine, order.sandboxId, machine.cgroups.makeHelper(order.sandboxId));
    const code = await runHelper({ argv, env, stdio }, deadline);
    if (code !== 0) throw new Error(`exit code ${code}: ${readLog(places)}`);
  } finally {
    closeSync(stdio);
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
