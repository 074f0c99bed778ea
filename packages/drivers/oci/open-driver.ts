import { execFile } from "node:child_process";
import { existsSync, readFileSync, rmSync, statSync } from "node:fs";
import { dirname } from "node:path";
import { promisify } from "node:util";
import {
  DEFAULT_IMAGE,
  DEFAULT_RESOURCES,
  HoldfastError,
  type InstallationId,
  newSandboxId,
} from "@holdfast/contract";
import type { Clock, Driver, Drives, Images, Journals, Log } from "@holdfast/engine";
import { Porter } from "@holdfast/keeper";
import { installBinaries } from "./binaries.ts";
import { bundleMaker } from "./bundle.ts";
import { Cgroups } from "./cgroup.ts";
import { MKFS } from "./disk.ts";
import { OciDriver } from "./driver.ts";
import { OciDrives } from "./drives.ts";
import { type HostFacts, isPassable, passableAlias, type RuntimeFacts, readHostFacts } from "./host.ts";
import { readHostFiles, shownDirs } from "./host-files.ts";
import { settleIds } from "./ids.ts";
import { OciImages } from "./images.ts";
import { OciJournals } from "./journals.ts";
import { IPC_SYSCTL, raiseInotify } from "./kernel.ts";
import { LaunchStepError } from "./launch-step.ts";
import { type Layout, layoutOf, makeLayout } from "./layout.ts";
import type { Machine } from "./machine.ts";
import { type RuntimeRecord, readRecord, writeRecord } from "./record.ts";
import { type RuntimeChoice, runtimeCandidates } from "./runtime.ts";
import { chooseStandby } from "./standby-trial.ts";
import { openStateDir, requireUnseen } from "./state-dir.ts";
import { endStrayPorters } from "./strays.ts";

export interface OciOptions {
  stateDir: string;
  installation: InstallationId;
  /** Does the host-side acts; one of this state directory's own where absent. */
  porter?: Porter;
  runtime?: RuntimeChoice;
  /** The first of the host's ids that sandboxes are mapped to, and how many; a range that nobody claims where absent. */
  idBase?: number;
  idCount?: number;
  /** What writes memory to disk, by name or path; the one that works here where absent. */
  criu?: string;
  /** What makes the file systems of sandboxes' own disks, with the options of mke2fs; that of the host where absent. */
  mkfs?: string;
  /** How often a link asks for a sign of life, and after what silence it counts as lost. */
  heartbeatMs?: number;
  deadMs?: number;
  log: Log;
  clock: Clock;
}

export interface OciMachine {
  driver: Driver;
  drives: Drives;
  images: Images;
  journals: Journals;
  facts: HostFacts;
}

const TRIAL_MS = 20_000;

/** Throws where a state directory of this path would be shown to sandboxes; makes nothing. */
export function checkStateDir(path: string): void {
  requireUnseen(path, shownDirs(readHostFiles()));
}

/** A driver for this machine, with a runtime that was seen to start an instance here. */
export async function createOciDriver(options: OciOptions): Promise<OciMachine> {
  const { installation, clock, log } = options;
  const layout = layoutOf(openStateDir(options.stateDir, shownDirs(readHostFiles())), installation);
  const { base: idBase, count: idCount } = settleIds(layout.ids, wantedIds(options));
  makeLayout(layout, idBase);
  await endStrayPorters(layout, clock, log);
  const keeper = await installBinaries(layout);
  const porter = options.porter ?? new Porter({ binary: keeper.porter });
  await porter.spread(layout.sandboxes).catch((error: unknown) => {
    log.warn({ detail: String(error) }, "sandboxes are not placed apart: launches may be slower");
  });
  await makeNullDevice(layout);
  raiseInotify(log);
  const host = await readHostFacts();
  const images = await OciImages.open({ layout, porter, clock, log, idBase, idCount });
  const { swapLimited, openFilesMax, cpus } = host;
  const bundleHost = {
    installation,
    idBase,
    idCount,
    swapLimited,
    cpus,
    openFilesMax,
    oomScoreAdj: oomScore(),
    sysctl: host.ipcSetInside ? IPC_SYSCTL : {},
  };
  const cgroups = new Cgroups(host.hierarchies, installation, clock);
  const alias = isPassable(dirname(layout.stateDir)) ? null : passableAlias();
  const liveness = livenessOf(options);
  const common = {
    installation,
    layout,
    cgroups,
    porter,
    images,
    keeper,
    idBase,
    idCount,
    alias,
    liveness,
    mkfs: options.mkfs ?? MKFS,
    clock,
    log,
  };
  const machineWith = (runtime: RuntimeFacts): Machine => ({
    ...common,
    criu: null,
    bundle: bundleMaker({ ...bundleHost, runtime: runtime.name }),
    facts: { ...host, runtime },
  });
  const runtime = await chooseRuntime(options.runtime ?? "auto", machineWith, layout, host);
  const { machine, standby } = await chooseStandby(machineWith(runtime), { criu: options.criu });
  log.info(
    { runtime: runtime.name, version: runtime.version, keeper: keeper.version, standby },
    "driver is up",
  );
  const journals = new OciJournals({ layout, porter, idBase });
  await journals.open();
  return {
    driver: new OciDriver(machine, standby),
    drives: new OciDrives(machine),
    images,
    journals,
    facts: machine.facts,
  };
}

const wantedIds = ({ idBase, idCount }: OciOptions) => ({
  ...(idBase === undefined ? {} : { base: idBase }),
  ...(idCount === undefined ? {} : { count: idCount }),
});

const livenessOf = ({ heartbeatMs, deadMs }: OciOptions) => ({
  ...(heartbeatMs === undefined ? {} : { heartbeatMs }),
  ...(deadMs === undefined ? {} : { deadMs }),
});

/**
 * crun hands its stdio to the user that it starts: the host's own /dev/null would become the sandboxes'. This one may.
 */
async function makeNullDevice(layout: Layout): Promise<void> {
  if (existsSync(layout.nullDevice) && statSync(layout.nullDevice).isCharacterDevice()) return;
  rmSync(layout.nullDevice, { force: true });
  await promisify(execFile)("mknod", ["-m", "666", layout.nullDevice, "c", "1", "3"], { timeout: 5_000 });
}

/** Not below our own, which takes a capability that root may lack; not below an ordinary process's either. */
const oomScore = (): number => Math.max(0, Number(readFileSync("/proc/self/oom_score_adj", "utf8")));

/** Tries are remembered for as long as neither the runtimes nor the running kernel change. */
async function chooseRuntime(
  choice: RuntimeChoice,
  machineWith: (runtime: RuntimeFacts) => Machine,
  layout: Layout,
  host: Pick<HostFacts, "bootId" | "hierarchies">,
): Promise<RuntimeFacts> {
  const candidates = await runtimeCandidates(choice, host.hierarchies);
  const key = JSON.stringify([host.bootId, candidates]);
  const known = readRecord(layout.facts) as RuntimeRecord | null | "unreadable";
  if (known !== null && known !== "unreadable" && known.key === key) return known.runtime;
  const failures: string[] = [];
  for (const runtime of candidates) {
    const failure = await tryRuntime(machineWith(runtime));
    if (failure === null) {
      writeRecord(layout.facts, { key, runtime } satisfies RuntimeRecord);
      return runtime;
    }
    failures.push(`${runtime.name} ${runtime.version}: ${failure}`);
  }
  const missing = choice === "auto" ? "neither crun nor runc was found" : `${choice} was not found`;
  const found = failures.length === 0 ? missing : failures.join("; ");
  throw new HoldfastError("launch_failed", {
    message: `No container runtime starts on this host: ${found}.`,
  });
}

/** Launches an instance, sees it run, and removes it. Null where all of that worked. */
async function tryRuntime(machine: Machine): Promise<string | null> {
  const driver = new OciDriver(machine, { kind: "files", why: "it has not been tried yet" });
  const sandboxId = newSandboxId();
  const signal = AbortSignal.timeout(TRIAL_MS);
  const order = {
    sandboxId,
    name: "trial",
    generation: 1,
    image: DEFAULT_IMAGE,
    resources: DEFAULT_RESOURCES,
    restart: false,
  };
  try {
    const instance = await driver.launch(order, signal);
    const link = await driver.connect(instance, signal);
    link.close();
    return null;
  } catch (error) {
    const cause = error instanceof Error ? error.cause : undefined;
    if (cause instanceof LaunchStepError) return `${cause.message} (${cause.detail})`;
    return error instanceof Error ? error.message : String(error);
  } finally {
    await driver.stop(sandboxId, { graceMs: 0 }, AbortSignal.timeout(TRIAL_MS));
    await driver.destroy(sandboxId, AbortSignal.timeout(TRIAL_MS));
    await driver.close();
  }
}
