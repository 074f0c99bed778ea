import { existsSync, mkdirSync, rmSync, statfsSync } from "node:fs";
import { dirname, join } from "node:path";
import {
  type CheckpointId,
  DEFAULT_IMAGE,
  DEFAULT_RESOURCES,
  newCheckpointId,
  newSandboxId,
} from "@holdfast/contract";
import type { StandbySupport } from "@holdfast/engine";
import { type Criu, type CriuOptions, findCriu } from "./checkpoint/find-criu.ts";
import { OciDriver } from "./driver.ts";
import { namesIn } from "./files/checkpoint-files.ts";
import type { CriuOnHost, Machine } from "./machine/machine.ts";
import { readRecord, type StandbyRecord, writeRecord } from "./machine/sandbox-notes.ts";
import { LaunchStepError, StandbyStepError } from "./machine/step-errors.ts";
import { describeOutside, isOutsideNamespace } from "./proc/hierarchies.ts";

const TRIAL_MS = 60_000;
const PROBE_MS = 30_000;
/**
 * Version of the trial. It is increased when the driver launches, dumps or restores differently, so that a trial that
 * failed earlier is repeated.
 */
const TRIAL_VERSION = 2;
const RUN = "/run";
const KERNEL_FILE = "criu.kdat";
const TMPFS_MAGIC = 0x0102_1994;

/**
 * Finds a CRIU that works on this host, and returns the machine with it, or without CRIU if none works. Kernels differ
 * in their support for CRIU, and only a trial shows whether memory can be dumped and restored. The result is remembered
 * until CRIU, the runtime, the keeper or the running kernel changes.
 */
export async function chooseStandby(
  machine: Machine,
  options: CriuOptions,
): Promise<{ machine: Machine; standby: StandbySupport }> {
  const found = await findCriu(options);
  if (!("path" in found)) return { machine, standby: filesOnly(`${found.missing}. ${found.fix}`) };
  const outside = machine.facts.hierarchies.find(isOutsideNamespace);
  if (outside !== undefined) return { machine, standby: filesOnly(describeOutside(outside)) };
  const able = { ...machine, criu: await prepareCriu(machine, found) };
  const failure = await remembered(able, found, () => tryStandby(able));
  if (failure === null) return { machine: able, standby: { kind: "memory", why: null } };
  return {
    machine,
    standby: filesOnly(`CRIU ${found.version} failed to dump and restore memory in a trial: ${failure}`),
  };
}

const filesOnly = (why: string): StandbySupport => ({ kind: "files", why });

/** Returns the remembered result of the trial, or runs the trial and remembers its result. */
async function remembered(
  { layout, facts, keeper }: Machine,
  criu: Criu,
  act: () => Promise<string | null>,
): Promise<string | null> {
  const file = join(layout.criu, "trial.json");
  const conditions = [facts.bootId, criu, facts.runtime, keeper.version, facts.hierarchies];
  const key = JSON.stringify([TRIAL_VERSION, ...conditions]);
  const known = readRecord(file) as StandbyRecord | null | "unreadable";
  if (known !== null && known !== "unreadable" && known.key === key) return known.failure;
  const failure = await act();
  writeRecord(file, { key, failure } satisfies StandbyRecord);
  return failure;
}

/**
 * Prepares the cache of CRIU's findings about the kernel, since probing the kernel takes CRIU a long time. CRIU itself
 * keeps this cache in /run if that is a tmpfs. On other hosts the cache is stored in the state directory, per boot, and
 * mounted for CRIU.
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

/** Dumps an instance to disk, restores it, connects to it and removes it. Returns the failure, or null on success. */
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
