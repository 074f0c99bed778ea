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
import { type Instance, type Log, systemClock } from "@holdfast/engine";
import { type ProcessIdentity, readIdentity } from "../machine/instance-identity.ts";
import type { RuntimeChoice } from "../machine/runtime.ts";
import { createOciDriver, type OciMachine, type OciOptions } from "../open-driver.ts";
import { isGone } from "../proc/errno.ts";
import { readHierarchies } from "../proc/hierarchies.ts";
import { readLoops } from "../proc/loop-devices.ts";
import { readMounts } from "../proc/mount-table.ts";

export const silent: Log = { debug() {}, info() {}, warn() {}, error() {}, child: () => silent };

export interface TestMachine extends OciMachine {
  stateDir: string;
  installation: InstallationId;
  /** Creates another driver on the same state directory, as the next server would. */
  again(options?: Partial<OciOptions>): Promise<OciMachine>;
  /**
   * Simulates a reboot of the host for this driver's sandboxes. The driver keeps running, and behaves as if it had
   * started after the reboot.
   */
  reboot(): Promise<void>;
  dispose(): Promise<void>;
}

/** Creates a driver with a state directory and an installation id of its own. */
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

/** Lists a cgroup and its descendants, innermost first. */
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

/** Kills the porters that start helpers for this process. New porters are started when they are needed. */
export function killSpawners(): void {
  const children = readFileSync(`/proc/self/task/${process.pid}/children`, "utf8");
  for (const pid of children.match(/\d+/g) ?? [])
    if (readFileSync(`/proc/${pid}/cmdline`, "utf8").endsWith("/porter\0spawn\0")) kill(Number(pid));
}

/** Searches the host for leftovers of the installation, independently of the driver's own observation. */
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

/** Identity of an instance's first process on the host. */
export const processOf = ({ identity }: Instance): ProcessIdentity => readIdentity(identity);
