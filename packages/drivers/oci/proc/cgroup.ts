import { existsSync, mkdirSync, readdirSync, readFileSync, rmdirSync, writeFileSync } from "node:fs";
import { basename, join } from "node:path";
import { type InstallationId, isSandboxId, type Resources, type SandboxId } from "@holdfast/contract";
import type { Clock } from "@holdfast/engine";
import { type Controls, type Counters, memoryOf, readCounters } from "./cgroup-usage.ts";
import { errnoOf, isGone } from "./errno.ts";
import { fieldOf } from "./fields.ts";
import { type Mount, readMounts } from "./mounts.ts";

/**
 * All that differs between cgroup versions is in this file and in `cgroup-usage.ts`. A host has one v2 hierarchy, several v1 ones with their
 * controllers spread over them, or both; an instance has a directory of the same name in each that the runtime used.
 */
export interface Hierarchy {
  version: 1 | 2;
  dir: string;
  controllers: string[];
}

/** Those that limits and freezing need. Version 2 has freezing built in. */
export const NEEDED_CONTROLLERS = ["cpu", "memory", "pids", "freezer"] as const;

const V1_WORDS =
  /^(cpu|cpuacct|cpuset|memory|pids|freezer|devices|blkio|net_cls|net_prio|perf_event|hugetlb|rdma|misc|name=.+)$/;

export function hierarchiesOf(
  mounts: readonly Mount[],
  readControllers: (dir: string) => string[],
): Hierarchy[] {
  const found = new Map<string, Hierarchy>();
  for (const mount of mounts) {
    if (mount.fsType === "cgroup2") {
      const controllers = [...readControllers(mount.mountPoint), "freezer"];
      found.set("unified", { version: 2, dir: mount.mountPoint, controllers });
    } else if (mount.fsType === "cgroup") {
      const controllers = mount.superOptions.filter((word) => V1_WORDS.test(word));
      found.set(controllers.join(), { version: 1, dir: mount.mountPoint, controllers });
    }
  }
  return [...found.values()];
}

export const readHierarchies = (): Hierarchy[] =>
  hierarchiesOf(readMounts(), (dir) => words(readFileSync(join(dir, "cgroup.controllers"), "utf8")));

/** Where a controller is; version 1 where both claim it, since a mounted v1 controller is not in use by v2. */
export function hierarchyWith(hierarchies: readonly Hierarchy[], controller: string): Hierarchy | undefined {
  const having = hierarchies.filter((hierarchy) => hierarchy.controllers.includes(controller));
  return having.find((hierarchy) => hierarchy.version === 1) ?? having[0];
}

/** Names of the hierarchies of version 1 in which a process is at this path, by its /proc/PID/cgroup. */
export const controllersOf = (text: string, path: string): string[] =>
  text.split("\n").flatMap((line) => {
    const [, name, at] = /^\d+:([^:]+):(.*)$/.exec(line) ?? [];
    return name === undefined || at !== path ? [] : [name];
  });

/** Whether swap can be counted into the memory limit. */
export function limitsSwap(hierarchies: readonly Hierarchy[]): boolean {
  const memory = hierarchyWith(hierarchies, "memory");
  if (memory === undefined) return false;
  if (memory.version === 1) return existsSync(join(memory.dir, "memory.memsw.limit_in_bytes"));
  return children(memory.dir).some((name) => existsSync(join(memory.dir, name, "memory.swap.max")));
}

const CPU_PERIOD_US = 100_000;
const CPU_QUOTA_MIN_US = 1_000;

/** The limits in the words of the OCI runtime specification, which writes them to either version. */
export function resourceLimits(resources: Resources, host: { swapLimited: boolean; cpus: number }) {
  const bytes = resources.memoryMb * 1_048_576;
  const quota = Math.max(CPU_QUOTA_MIN_US, Math.round(resources.cpus * CPU_PERIOD_US));
  return {
    devices: [{ allow: false, access: "rwm" }],
    memory: { limit: bytes, ...(host.swapLimited ? { swap: bytes } : {}) },
    // A limit that can't be reached is none. Counting against one costs every short command a sixth of its time.
    cpu: resources.cpus >= host.cpus ? {} : { quota, period: CPU_PERIOD_US },
    pids: { limit: resources.pids },
  };
}

const POLL_MS = 2;
const HELPER_PREFIX = "helper-";

/** The cgroups of one installation's sandboxes. Reads are a few small kernel files each and never block. */
export class Cgroups {
  readonly hierarchies: readonly Hierarchy[];
  readonly #parent: string;
  readonly #clock: Clock;
  readonly #found = new Map<string, Hierarchy | undefined>();

  constructor(hierarchies: readonly Hierarchy[], installation: InstallationId, clock: Clock) {
    this.hierarchies = hierarchies;
    this.#parent = `holdfast-${installation}`;
    this.#clock = clock;
  }

  path(id: SandboxId): string {
    return `/${this.#parent}/${id}`;
  }

  /** The sandbox's cgroup in the hierarchy that freezes. */
  freezer(id: SandboxId): string {
    return this.#dir(required(this.#with("freezer")), id);
  }

  /** The limits that are in force, as far as they can be read; null where one is missing. */
  limits(id: SandboxId): { memoryBytes: number | null; pids: number | null } {
    const read = (controller: string, first: string, second: string): number | null => {
      const hierarchy = this.#with(controller);
      if (hierarchy === undefined) return null;
      const file = hierarchy.version === 1 ? first : second;
      const value = Number((readIfThere(join(this.#dir(hierarchy, id), file)) ?? "max").trim());
      return Number.isSafeInteger(value) ? value : null;
    };
    return {
      memoryBytes: read("memory", "memory.limit_in_bytes", "memory.max"),
      pids: read("pids", "pids.max", "pids.max"),
    };
  }

  /** Of memory that is in no file: what its processes have, and what lies in memory file systems. */
  memoryBytes(id: SandboxId): number {
    return memoryOf(this.#controls(id));
  }

  /** What was counted for it so far; null where it has no cgroup. */
  counters(id: SandboxId): Counters | null {
    return readCounters(this.#controls(id));
  }

  /**
   * Makes the installation's own cgroups where they are missing, as after a restart of the host. A runtime does that
   * itself; CRIU leaves them without what version 1's cpuset and version 2 want to be told before anything can be in them.
   */
  makeParent(): void {
    const used = this.hierarchies.filter(({ version }) => version === 1);
    for (const hierarchy of used.length > 0 ? used : this.hierarchies) {
      const dir = join(hierarchy.dir, this.#parent);
      mkdirSync(dir, { recursive: true });
      if (hierarchy.version === 1 && hierarchy.controllers.includes("cpuset"))
        inheritCpuset(hierarchy.dir, dir);
      if (hierarchy.version === 2) delegate(hierarchy, dir);
    }
  }

  /** The processes in any hierarchy: a launch that broke off may have entered only some. */
  members(id: SandboxId): number[] {
    return [...new Set(this.hierarchies.flatMap((hierarchy) => membersIn(this.#dir(hierarchy, id))))];
  }

  /** Those in the one cgroup that every instance has: for who wants to know soon, and not whether there is any elsewhere. */
  processes(id: SandboxId): number[] {
    const freezer = required(this.#with("freezer"));
    return pidsIn(this.#dir(freezer, id));
  }

  /**
   * Makes a cgroup for helpers beside the sandbox's and gives the file by which a process enters it. What a helper forks
   * is born there, whatever session it moves to, and leaves only for the sandbox's own cgroup: in one of the two it can
   * always be found.
   */
  makeHelper(id: SandboxId): string {
    const dir = this.#helperDir(id);
    mkdirSync(dir, { recursive: true });
    return join(dir, "cgroup.procs");
  }

  helpers(id: SandboxId): number[] {
    return membersIn(this.#helperDir(id));
  }

  /** False where something is still in it. */
  removeHelper(id: SandboxId): boolean {
    return removeTree(this.#helperDir(id));
  }

  /** The names of the hierarchies in which the sandbox has a cgroup. */
  existing(id: SandboxId): string[] {
    const own = this.hierarchies.filter((hierarchy) => existsSync(this.#dir(hierarchy, id)));
    const helper = existsSync(this.#helperDir(id)) ? ["helper"] : [];
    return [...own.map((hierarchy) => basename(hierarchy.dir)), ...helper];
  }

  /** Every sandbox that has a cgroup, a helper's included. */
  ids(): Set<SandboxId> {
    const names = this.hierarchies.flatMap(({ dir }) => children(join(dir, this.#parent)));
    return new Set(names.map((name) => name.replace(HELPER_PREFIX, "")).filter(isSandboxId));
  }

  isFrozen(id: SandboxId): boolean {
    const freezer = required(this.#with("freezer"));
    const dir = this.#dir(freezer, id);
    if (freezer.version === 1) return (readIfThere(join(dir, "freezer.state")) ?? "").startsWith("FROZEN");
    return counter(join(dir, "cgroup.events"), "frozen") === 1;
  }

  oomKills(id: SandboxId): number {
    const memory = this.#with("memory");
    if (memory === undefined) return 0;
    const file = memory.version === 1 ? "memory.oom_control" : "memory.events";
    return counter(join(this.#dir(memory, id), file), "oom_kill");
  }

  /** Resolves when every process is frozen. Version 1 gives up on one in the middle of a fork: it is asked again. */
  freeze(id: SandboxId, signal: AbortSignal): Promise<void> {
    return this.#settle(id, true, signal);
  }

  thaw(id: SandboxId, signal: AbortSignal): Promise<void> {
    return this.#settle(id, false, signal);
  }

  /** Asks for the freeze and does not wait for it: what is in it does not return to its program. Nothing there is fine. */
  hold(id: SandboxId): void {
    this.#writeIfThere(id, true);
  }

  /** Asks for the thaw and does not wait for it; nothing there is fine. */
  unfreeze(id: SandboxId): void {
    this.#writeIfThere(id, false);
  }

  #writeIfThere(id: SandboxId, frozen: boolean): void {
    try {
      this.#write(id, frozen);
    } catch (error) {
      if (!isGone(error)) throw error;
    }
  }

  async #settle(id: SandboxId, frozen: boolean, signal: AbortSignal): Promise<void> {
    for (;;) {
      signal.throwIfAborted();
      try {
        this.#write(id, frozen);
      } catch (error) {
        // Told to callers, who have no use for the path.
        throw new Error(`its cgroup can't be ${frozen ? "frozen" : "thawed"} (${errnoOf(error)})`);
      }
      if (this.isFrozen(id) === frozen) return;
      await this.#clock.sleep(POLL_MS, signal);
    }
  }

  #write(id: SandboxId, frozen: boolean): void {
    const freezer = required(this.#with("freezer"));
    const dir = this.#dir(freezer, id);
    if (freezer.version === 1)
      writeFileSync(join(dir, "freezer.state"), frozen ? "FROZEN" : "THAWED", { flag: "r+" });
    else writeFileSync(join(dir, "cgroup.freeze"), frozen ? "1" : "0", { flag: "r+" });
  }

  /** Removes the sandbox's cgroups everywhere. One whose last process is still being buried is tried again. */
  async remove(id: SandboxId, signal: AbortSignal): Promise<void> {
    while (!this.removeHelper(id)) await this.#clock.sleep(POLL_MS, signal);
    for (const hierarchy of this.hierarchies) {
      while (!removeTree(this.#dir(hierarchy, id))) await this.#clock.sleep(POLL_MS, signal);
    }
  }

  /** Removes the installation's own cgroups where no sandbox is left in them. */
  removeParent(): void {
    for (const hierarchy of this.hierarchies) removeTree(join(hierarchy.dir, this.#parent), false);
  }

  /** Looked for once: hierarchies are as they were at the start for as long as this server runs. */
  #with(controller: string): Hierarchy | undefined {
    if (!this.#found.has(controller))
      this.#found.set(controller, hierarchyWith(this.hierarchies, controller));
    return this.#found.get(controller);
  }

  #dir(hierarchy: Hierarchy, id: SandboxId): string {
    return `${hierarchy.dir}/${this.#parent}/${id}`;
  }

  #controls(id: SandboxId): Controls {
    return (controller) => {
      const hierarchy = this.#with(controller);
      if (hierarchy === undefined) return null;
      const dir = this.#dir(hierarchy, id);
      return { version: hierarchy.version, read: (file) => readIfThere(`${dir}/${file}`) };
    };
  }

  /** In the hierarchy that freezes, which every host has and every runtime uses. */
  #helperDir(id: SandboxId): string {
    const { dir } = required(this.#with("freezer"));
    return join(dir, this.#parent, HELPER_PREFIX + id);
  }
}

function required(freezer: Hierarchy | undefined): Hierarchy {
  if (freezer === undefined) throw new Error("this host has no cgroup freezer");
  return freezer;
}

function inheritCpuset(above: string, dir: string): void {
  for (const file of ["cpuset.cpus", "cpuset.mems"]) {
    if ((readIfThere(join(dir, file)) ?? "").trim() !== "") continue;
    writeFileSync(join(dir, file), readFileSync(join(above, file)), { flag: "r+" });
  }
}

/** One that the kernel does not give away here is not in use. */
function delegate({ controllers }: Hierarchy, dir: string): void {
  for (const controller of controllers.filter((name) => name !== "freezer")) {
    try {
      writeFileSync(join(dir, "cgroup.subtree_control"), `+${controller}`, { flag: "r+" });
    } catch (error) {
      if (!["EBUSY", "EINVAL", "ENOENT", "EOPNOTSUPP"].includes(errnoOf(error))) throw error;
    }
  }
}

/** False where a cgroup is busy. Those below it are removed first: a runtime may have made some. */
function removeTree(dir: string, below = true): boolean {
  if (below && !children(dir).every((name) => removeTree(join(dir, name)))) return false;
  try {
    rmdirSync(dir);
    return true;
  } catch (error) {
    if (isGone(error)) return true;
    if (errnoOf(error) === "EBUSY" || errnoOf(error) === "ENOTEMPTY") return false;
    throw error;
  }
}

const pidsIn = (dir: string): number[] => words(readIfThere(join(dir, "cgroup.procs")) ?? "").map(Number);

const membersIn = (dir: string): number[] => [
  ...pidsIn(dir),
  ...children(dir).flatMap((name) => membersIn(join(dir, name))),
];

function children(dir: string): string[] {
  try {
    return readdirSync(dir, { withFileTypes: true })
      .filter((entry) => entry.isDirectory())
      .map((entry) => entry.name);
  } catch (error) {
    if (isGone(error)) return [];
    throw error;
  }
}

const counter = (path: string, name: string): number => fieldOf(readIfThere(path) ?? "", name);

function readIfThere(path: string): string | null {
  try {
    return readFileSync(path, "utf8");
  } catch (error) {
    if (isGone(error)) return null;
    throw error;
  }
}

const words = (text: string): string[] => text.split(/\s+/).filter(Boolean);
