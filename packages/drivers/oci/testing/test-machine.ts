import { execFileSync } from "node:child_process";
import {
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmdirSync,
  rmSync,
  writeFileSync,
} from "node:fs";
import { rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { type InstallationId, newInstallationId } from "@holdfast/contract";
import { type Log, systemClock } from "@holdfast/engine";
import { readHierarchies } from "./cgroup.ts";
import { createOciDriver, type OciMachine, type OciOptions } from "./create.ts";
import { isGone } from "./errno.ts";
import { readLoops } from "./loops.ts";
import { readMounts } from "./mounts.ts";
import type { RuntimeChoice } from "./runtime.ts";

export const silent: Log = { debug() {}, info() {}, warn() {}, error() {}, child: () => silent };

export interface TestMachine extends OciMachine {
  stateDir: string;
  installation: InstallationId;
  again(options?: Partial<OciOptions>): Promise<OciMachine>;
  /** Does to the machine's sandboxes what a restart of the host does. The driver goes on, in what is a later boot to them. */
  reboot(): Promise<void>;
  dispose(): Promise<void>;
}

/** A driver on a state directory and under an installation id of its own. */
export async function testMachine(runtime: RuntimeChoice = "auto"): Promise<TestMachine> {
  const stateDir = mkdtempSync(join(tmpdir(), "holdfast-oci-"));
  const installation = newInstallationId();
  const create = (options: Partial<OciOptions> = {}) =>
    createOciDriver({ stateDir, installation, runtime, log: silent, clock: systemClock, ...options });
  const machine = await create();
  const dispose = async () => {
    const found = await machine.driver.list(AbortSignal.timeout(10_000));
    if (found.length > 0) throw new Error(`left behind: ${JSON.stringify(found)}`);
    await machine.driver.close();
    await rm(stateDir, { recursive: true, force: true });
    const left = leftBehind(installation, stateDir);
    if (left.length > 0) throw new Error(`left behind: ${left.join(", ")}`);
  };
  const reboot = () => simulateReboot(installation, stateDir);
  return { ...machine, stateDir, installation, again: create, reboot, dispose };
}

const KILLED_MS = 10_000;

async function simulateReboot(installation: InstallationId, stateDir: string): Promise<void> {
  const cgroups = readHierarchies().flatMap(({ dir }) => cgroupsBelow(join(dir, `holdfast-${installation}`)));
  const pids = () => [
    ...new Set(cgroups.flatMap((dir) => readFileSync(join(dir, "cgroup.procs"), "utf8").match(/\d+/g) ?? [])),
  ];
  for (const end = Date.now() + KILLED_MS; pids().length > 0 && Date.now() < end; ) {
    for (const pid of pids()) kill(Number(pid));
    await new Promise((resolve) => setTimeout(resolve, 5));
  }
  for (const dir of cgroups) rmdirSync(dir);
  const mounts = readMounts().filter(({ mountPoint }) => mountPoint.startsWith(`${stateDir}/`));
  for (const { mountPoint } of mounts.toReversed()) execFileSync("umount", [mountPoint]);
  rmSync(join(stateDir, "runtime"), { recursive: true });
  mkdirSync(join(stateDir, "runtime"), { mode: 0o700 });
  for (const id of readdirSync(join(stateDir, "sandboxes"))) {
    const note = join(stateDir, "sandboxes", id, "instance.json");
    if (!existsSync(note)) continue;
    const instance = JSON.parse(readFileSync(note, "utf8"));
    writeFileSync(note, JSON.stringify({ ...instance, hostBootId: "an earlier boot" }));
  }
}

/** The innermost first. */
function cgroupsBelow(dir: string): string[] {
  if (!existsSync(dir)) return [];
  const below = readdirSync(dir, { withFileTypes: true }).filter((entry) => entry.isDirectory());
  return [...below.flatMap(({ name }) => cgroupsBelow(join(dir, name))), dir];
}

function kill(pid: number): void {
  try {
    process.kill(pid, "SIGKILL");
  } catch (error) {
    if (!isGone(error)) throw error;
  }
}

/** Those of this process: they are started again when they are needed. */
export function killSpawners(): void {
  const children = readFileSync(`/proc/self/task/${process.pid}/children`, "utf8");
  for (const pid of children.match(/\d+/g) ?? [])
    if (readFileSync(`/proc/${pid}/cmdline`, "utf8").endsWith("/porter\0spawn\0")) kill(Number(pid));
}

/** Looked for without the driver's own eyes. */
function leftBehind(installation: InstallationId, stateDir: string): string[] {
  const cgroups = readHierarchies().map(({ dir }) => join(dir, `holdfast-${installation}`));
  const mounts = readMounts().filter(({ source, mountPoint }) =>
    `${source} ${mountPoint}`.includes(installation),
  );
  const owner = readFileSync("/proc/self/mounts", "utf8").includes(stateDir) ? [stateDir] : [];
  return [
    ...cgroups.filter((dir) => existsSync(dir)),
    ...mounts.map(({ mountPoint }) => mountPoint),
    ...owner,
    ...readLoops()
      .filter(({ file }) => file.startsWith(stateDir))
      .map(({ name }) => name),
  ];
}
