import { existsSync, mkdtempSync, readFileSync } from "node:fs";
import { rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { type InstallationId, newInstallationId } from "@holdfast/contract";
import { type Log, systemClock } from "@holdfast/engine";
import { readHierarchies } from "./cgroup.ts";
import { createOciDriver, type OciMachine } from "./create.ts";
import { readMounts } from "./mounts.ts";
import type { RuntimeChoice } from "./runtime.ts";

export const silent: Log = { debug() {}, info() {}, warn() {}, error() {}, child: () => silent };

export interface TestMachine extends OciMachine {
  stateDir: string;
  installation: InstallationId;
  again(): Promise<OciMachine>;
  dispose(): Promise<void>;
}

/** A driver on a state directory and under an installation id of its own. */
export async function testMachine(runtime: RuntimeChoice = "auto"): Promise<TestMachine> {
  const stateDir = mkdtempSync(join(tmpdir(), "holdfast-oci-"));
  const installation = newInstallationId();
  const create = () => createOciDriver({ stateDir, installation, runtime, log: silent, clock: systemClock });
  const machine = await create();
  const dispose = async () => {
    const found = await machine.driver.list(AbortSignal.timeout(10_000));
    if (found.length > 0) throw new Error(`left behind: ${JSON.stringify(found)}`);
    await machine.driver.close();
    await rm(stateDir, { recursive: true, force: true });
    const left = leftBehind(installation, stateDir);
    if (left.length > 0) throw new Error(`left behind: ${left.join(", ")}`);
  };
  return { ...machine, stateDir, installation, again: create, dispose };
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
  ];
}
