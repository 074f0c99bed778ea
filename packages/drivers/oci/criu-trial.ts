import { existsSync, mkdirSync, rmSync, statfsSync } from "node:fs";
import { dirname, join } from "node:path";
import {
  type CheckpointId,
  DEFAULT_IMAGE,
  DEFAULT_RESOURCES,
  newCheckpointId,
  newSandboxId,
} from "@holdfast/contract";
import type { Driver } from "@holdfast/engine";
import { namesIn } from "./checkpoints.ts";
import { type Criu, type CriuOptions, findCriu } from "./criu-binary.ts";
import { OciDriver } from "./driver.ts";
import { LaunchStepError } from "./launch-step.ts";
import type { CriuOnHost, Machine } from "./machine.ts";
import { readRecord, type StandbyRecord, writeRecord } from "./record.ts";
import { StandbyStepError } from "./standby-step.ts";

const TRIAL_MS = 60_000;
const PROBE_MS = 30_000;
const RUN = "/run";
const KERNEL_FILE = "criu.kdat";
const TMPFS_MAGIC = 0x0102_1994;

type Standby = Driver["standby"];

/**
 * A machine with a CRIU that was seen to bring memory back here, or with none. Kernels differ in what CRIU needs of them, and
 * no question to it answers what one round trip does. Tries are remembered for as long as neither CRIU, nor the runtime, nor
 * the running kernel change.
 */
export async function chooseStandby(
  machine: Machine,
  options: CriuOptions,
): Promise<{ machine: Machine; standby: Standby }> {
  const found = await findCriu(options);
  if (!("path" in found)) return { machine, standby: filesOnly(`${found.missing}. ${found.fix}`) };
  const able = { ...machine, criu: await prepareCriu(machine, found) };
  const failure = await remembered(able, found, () => tryStandby(able));
  if (failure === null) return { machine: able, standby: { kind: "memory", why: null } };
  return { machine, standby: filesOnly(`CRIU ${found.version} did not bring memory back: ${failure}`) };
}

const filesOnly = (why: string): Standby => ({ kind: "files", why });

async function remembered(
  { layout, facts, keeper }: Machine,
  criu: Criu,
  act: () => Promise<string | null>,
): Promise<string | null> {
  const file = join(layout.criu, "trial.json");
  const key = JSON.stringify([facts.bootId, criu, facts.runtime, keeper.version]);
  const known = readRecord(file) as StandbyRecord | null | "unreadable";
  if (known !== null && known !== "unreadable" && known.key === key) return known.failure;
  const failure = await act();
  writeRecord(file, { key, failure } satisfies StandbyRecord);
  return failure;
}

/**
 * CRIU looks at the kernel for long before it does anything, and keeps what it found in /run where that is in memory.
 * Elsewhere that is kept here, per boot, and given to it.
 */
async function prepareCriu({ layout, facts, porter }: Machine, criu: Criu): Promise<CriuOnHost> {
  if (statfsSync(RUN).type === TMPFS_MAGIC) return { ...criu, runFile: undefined };
  const name = `${criu.version}-${facts.bootId}`;
  const runFile = join(layout.criu, name, KERNEL_FILE);
  const isOld = (other: string) => other !== name && other.includes("-");
  for (const other of namesIn(layout.criu).filter(isOld)) {
    rmSync(join(layout.criu, other), { recursive: true, force: true });
  }
  if (existsSync(runFile)) return { ...criu, runFile };
  mkdirSync(dirname(runFile), { recursive: true, mode: 0o700 });
  const keep = '"$1" check --no-default-config; cp "$2" "$3.new" && mv "$3.new" "$3"';
  const script = ["/bin/sh", "-c", keep, "sh", criu.path, join(RUN, KERNEL_FILE), runFile];
  const argv = porter.privateArgv(script, { runFile });
  const env = { PATH: "/usr/sbin:/usr/bin:/sbin:/bin" };
  await porter.run({ argv, env }, AbortSignal.timeout(PROBE_MS));
  return { ...criu, runFile };
}

/** Sends an instance to disk, brings it back, sees it answer, and removes it. Null where all of that worked. */
async function tryStandby(machine: Machine): Promise<string | null> {
  const driver = new OciDriver(machine, { kind: "memory", why: null });
  const sandboxId = newSandboxId();
  const signal = AbortSignal.timeout(TRIAL_MS);
  const made = { sandboxId, name: "trial", image: DEFAULT_IMAGE, resources: DEFAULT_RESOURCES };
  try {
    const first = await driver.launch({ ...made, generation: 1, restart: false }, signal);
    (await driver.connect(first, signal)).close();
    await driver.freeze(sandboxId, signal);
    const id: CheckpointId = newCheckpointId();
    const checkpoint = await driver.checkpoint({ sandboxId, generation: 1, id }, signal);
    await driver.stop(sandboxId, { graceMs: 0 }, signal);
    const instance = await driver.restore({ ...made, generation: 2, checkpoint }, signal);
    await driver.thaw(sandboxId, signal);
    const link = await driver.connect(instance, signal);
    link.close();
    return null;
  } catch (error) {
    return describeFailure(error);
  } finally {
    await driver.stop(sandboxId, { graceMs: 0 }, AbortSignal.timeout(TRIAL_MS));
    await driver.destroy(sandboxId, AbortSignal.timeout(TRIAL_MS));
    await driver.close();
  }
}

function describeFailure(error: unknown): string {
  const failure = error instanceof Error && error.cause instanceof LaunchStepError ? error.cause : error;
  if (failure instanceof StandbyStepError || failure instanceof LaunchStepError) {
    return `${failure.message} (${failure.detail})`;
  }
  return failure instanceof Error ? failure.message : String(failure);
}
