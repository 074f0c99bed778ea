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
import type { Clock, Log } from "@holdfast/engine";
import { Porter } from "@holdfast/keeper";
import { chooseStandby } from "./criu-trial.ts";
import { OciDriver } from "./driver.ts";
import { MKFS } from "./files/disk.ts";
import { OciImages } from "./images/images.ts";
import { bundleMaker } from "./launch/bundle.ts";
import { installBinaries } from "./machine/binaries.ts";
import {
  type HostFacts,
  isPassable,
  passableAlias,
  type RuntimeFacts,
  readHostFacts,
} from "./machine/host-facts.ts";
import { readHostFiles, shownDirs } from "./machine/host-files.ts";
import { settleIds } from "./machine/id-range.ts";
import { type JailLimits, Jails } from "./machine/jails.ts";
import { type Layout, layoutOf, makeLayout } from "./machine/layout.ts";
import type { Machine } from "./machine/machine.ts";
import { type RuntimeChoice, runtimeCandidates } from "./machine/runtime.ts";
import { type RuntimeRecord, readRecord, writeRecord } from "./machine/sandbox-notes.ts";
import { openStateDir, requireUnseen } from "./machine/state-dir.ts";
import { LaunchStepError } from "./machine/step-errors.ts";
import { endStrayPorters } from "./machine/stray-porters.ts";
import { IPC_SYSCTL, raiseInotify } from "./machine/sysctls.ts";
import { Cgroups } from "./proc/cgroup.ts";

export interface OciOptions {
  stateDir: string;
  installation: InstallationId;
  /** The porter to use. Default: the one installed in this state directory. */
  porter?: Porter;
  runtime?: RuntimeChoice;
  /** First host id that sandboxes are mapped to. Default: the start of a range that no other user claims. */
  idBase?: number;
  /** Number of host ids that sandboxes are mapped to. */
  idCount?: number;
  /** Name or path of the CRIU that dumps memory to disk. Default: the one that is found on this host. */
  criu?: string;
  /**
   * Name or path of the program that creates the file systems of sandboxes' and drives' own disks. It must accept the
   * options of mke2fs. Default: mke2fs.
   */
  mkfs?: string;
  /** Interval of a link's heartbeat. */
  heartbeatMs?: number;
  /** Time of silence after which the server treats a link as lost. */
  deadMs?: number;
  /** Limits on the jails that serve files of drives and of sandboxes in standby. Default: the contract's numbers. */
  jailLimits?: JailLimits;
  log: Log;
  clock: Clock;
}

export interface OciMachine {
  driver: OciDriver;
  facts: HostFacts;
}

const TRIAL_MS = 20_000;

/** Throws if sandboxes could see a state directory at this path. Creates nothing. */
export function checkStateDir(path: string): void {
  requireUnseen(path, shownDirs(readHostFiles()));
}

/** Creates a driver for this machine, with a runtime that has started a trial instance on it. */
export async function createOciDriver(options: OciOptions): Promise<OciMachine> {
  const { installation, clock, log } = options;
  const layout = layoutOf(openStateDir(options.stateDir, shownDirs(readHostFiles())), installation);
  const { base: idBase, count: idCount } = settleIds(layout.ids, wantedIds(options));
  makeLayout(layout, idBase);
  await endStrayPorters(layout, clock, log);
  const keeper = await installBinaries(layout);
  const porter = options.porter ?? new Porter({ binary: keeper.porter });
  await porter.spread(layout.sandboxes).catch((error: unknown) => {
    log.warn(
      { detail: String(error) },
      "directories of sandboxes can't be placed far apart on the disk: launches may be slower",
    );
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
    jails: new Jails(porter, clock, options.jailLimits),
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
    "driver is ready",
  );
  const driver = new OciDriver(machine, standby);
  await driver.journals.open();
  return { driver, facts: machine.facts };
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
 * Creates a null device for the runtime's stdio. crun changes the owner of its stdio to the sandbox's user, which must
 * not happen to the host's /dev/null.
 */
async function makeNullDevice(layout: Layout): Promise<void> {
  if (existsSync(layout.nullDevice) && statSync(layout.nullDevice).isCharacterDevice()) return;
  rmSync(layout.nullDevice, { force: true });
  await promisify(execFile)("mknod", ["-m", "666", layout.nullDevice, "c", "1", "3"], { timeout: 5_000 });
}

/**
 * Returns the `oom_score_adj` of sandboxes: the value of this server's process, but at least 0. A value below the
 * server's own can be set only with a Linux capability that root may lack.
 */
const oomScore = (): number => Math.max(0, Number(readFileSync("/proc/self/oom_score_adj", "utf8")));

/** Finds a runtime that works on this host. The result is remembered until a runtime or the running kernel changes. */
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

/** Launches an instance, connects to it and removes it. Returns the failure, or null on success. */
async function tryRuntime(machine: Machine): Promise<string | null> {
  const driver = new OciDriver(machine, { kind: "files", why: "memory standby has not been tried yet" });
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
