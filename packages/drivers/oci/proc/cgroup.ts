import { existsSync, mkdirSync, readFileSync, rmdirSync, writeFileSync } from "node:fs";
import { basename, join } from "node:path";
import { type InstallationId, isSandboxId, type Resources, type SandboxId } from "@holdfast/contract";
import type { Clock } from "@holdfast/engine";
import { type Controls, type Counters, memoryOf, readCounters } from "./cgroup-usage.ts";
import { errnoOf, isGone } from "./errno.ts";
import { fieldOf, words } from "./fields.ts";
import { children, type Hierarchy, hierarchyWith, isBelow, NEEDED_CONTROLLERS } from "./hierarchies.ts";

const CPU_PERIOD_US = 100_000;
const CPU_QUOTA_MIN_US = 1_000;

/** Limits in the format of the OCI runtime specification, which is the same for both cgroup versions. */
export function resourceLimits(resources: Resources, host: { swapLimited: boolean; cpus: number }) {
  const bytes = resources.memoryMb * 1_048_576;
  const quota = Math.max(CPU_QUOTA_MIN_US, Math.round(resources.cpus * CPU_PERIOD_US));
  return {
    devices: [{ allow: false, access: "rwm" }],
    memory: { limit: bytes, ...(host.swapLimited ? { swap: bytes } : {}) },
    // A quota of all CPUs is omitted: it limits nothing, but its accounting costs short commands a sixth of their time.
    cpu: resources.cpus >= host.cpus ? {} : { quota, period: CPU_PERIOD_US },
    pids: { limit: resources.pids },
  };
}

const POLL_MS = 2;
const HELPER_PREFIX = "helper-";

/** The cgroups of one installation's sandboxes. Each read opens only a few small kernel files and never blocks. */
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

  /** Path of the sandbox's cgroup below the mounted cgroup of each hierarchy, in the form that the runtime expects. */
  path(id: SandboxId): string {
    return `/${this.#parent}/${id}`;
  }

  /** Path of the sandbox's cgroup in a hierarchy, as /proc/PID/cgroup and CRIU name it. */
  #pathIn({ root }: Hierarchy, id: SandboxId): string {
    return root === "/" ? this.path(id) : root + this.path(id);
  }

  /**
   * Whether a process is in a cgroup of the sandbox, or below one. `text` is the content of the process's
   * /proc/PID/cgroup.
   */
  hasMember(id: SandboxId, text: string): boolean {
    const paths = this.hierarchies.map((hierarchy) => this.#pathIn(hierarchy, id));
    return linesOf(text).some(({ path }) => paths.some((own) => isBelow(own, path)));
  }

  /**
   * The controllers whose limits do not apply to a process of the sandbox, because the process is outside the sandbox's
   * cgroup. `text` is the content of the process's /proc/PID/cgroup.
   */
  missingFor(id: SandboxId, text: string): string[] {
    const lines = linesOf(text);
    return NEEDED_CONTROLLERS.filter((controller) => {
      const hierarchy = this.#with(controller);
      if (hierarchy === undefined) return false;
      const line = lines.find(({ names }) =>
        hierarchy.version === 2 ? names === "" : names.split(",").includes(controller),
      );
      return line === undefined || !isBelow(this.#pathIn(hierarchy, id), line.path);
    });
  }

  /**
   * Names of the v1 hierarchies in which a process is in the sandbox's cgroup. `text` is the content of the process's
   * /proc/PID/cgroup.
   */
  controllersOf(id: SandboxId, text: string): string[] {
    const paths = new Set(this.hierarchies.map((hierarchy) => this.#pathIn(hierarchy, id)));
    return linesOf(text)
      .filter(({ names, path }) => names !== "" && paths.has(path))
      .map(({ names }) => names);
  }

  /**
   * The sandbox's cgroups in the form of CRIU's option `--cgroup-root`: first a path for all hierarchies, then for each
   * v1 hierarchy the name of one of its controllers and a path. CRIU mounts whole hierarchies, so the paths begin at
   * their roots.
   */
  restoreRoots(id: SandboxId): string[] {
    if (this.hierarchies.every(({ root }) => root === "/")) return [this.path(id)];
    const unified = this.hierarchies.find(({ version }) => version === 2);
    const v1 = this.hierarchies.filter(({ version }) => version === 1);
    return [
      unified === undefined ? this.path(id) : this.#pathIn(unified, id),
      ...v1.map((hierarchy) => `${hierarchy.controllers[0]}:${this.#pathIn(hierarchy, id)}`),
    ];
  }

  /**
   * Moves a process into the sandbox's freezer cgroup, where a stop finds it. If the process was frozen in another
   * cgroup, it is no longer frozen.
   */
  adopt(id: SandboxId, pid: number): void {
    const dir = this.freezer(id);
    mkdirSync(dir, { recursive: true });
    writeFileSync(join(dir, "cgroup.procs"), String(pid), { flag: "r+" });
  }

  /** Path of the sandbox's cgroup in the hierarchy of the freezer. */
  freezer(id: SandboxId): string {
    return this.#dir(required(this.#with("freezer")), id);
  }

  /** Reads the limits in effect; null for a limit that is not set or can't be read. */
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

  /** Bytes of memory without a file on disk: anonymous memory of processes, and shared memory including tmpfs. */
  memoryBytes(id: SandboxId): number {
    return memoryOf(this.#controls(id));
  }

  /** Reads the sandbox's resource counters; null if it has no cgroup. */
  counters(id: SandboxId): Counters | null {
    return readCounters(this.#controls(id));
  }

  /**
   * Creates the installation's parent cgroups if they are missing, for example after a reboot of the host. Container
   * runtimes do this themselves. CRIU creates them without the settings that child cgroups need before a process can
   * enter: the CPUs and memory nodes of v1's `cpuset`, and v2's list of enabled controllers.
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

  /**
   * Processes of the sandbox in any hierarchy. All hierarchies are searched, because the process of an aborted launch
   * may have entered the cgroups of only some of them.
   */
  members(id: SandboxId): number[] {
    return [...new Set(this.hierarchies.flatMap((hierarchy) => membersIn(this.#dir(hierarchy, id))))];
  }

  /**
   * Processes in the sandbox's freezer cgroup, which every instance has. This is cheaper than `members`, because no
   * other hierarchy is searched.
   */
  processes(id: SandboxId): number[] {
    const freezer = required(this.#with("freezer"));
    return pidsIn(this.#dir(freezer, id));
  }

  /**
   * Creates a cgroup for helper processes next to the sandbox's cgroup. Returns the file through which a process enters
   * the helper cgroup. Descendants of a helper start in the helper cgroup, even in a new session, and leave it only for
   * the sandbox's own cgroup. So they can always be found in one of these two cgroups.
   */
  makeHelper(id: SandboxId): string {
    const dir = this.#helperDir(id);
    mkdirSync(dir, { recursive: true });
    return join(dir, "cgroup.procs");
  }

  helpers(id: SandboxId): number[] {
    return membersIn(this.#helperDir(id));
  }

  /** Removes the helper cgroup. Returns false if it still contains a process. */
  removeHelper(id: SandboxId): boolean {
    return removeTree(this.#helperDir(id));
  }

  /** Names of the hierarchies in which the sandbox has a cgroup, plus "helper" if it has a helper cgroup. */
  existing(id: SandboxId): string[] {
    const own = this.hierarchies.filter((hierarchy) => existsSync(this.#dir(hierarchy, id)));
    const helper = existsSync(this.#helperDir(id)) ? ["helper"] : [];
    return [...own.map((hierarchy) => basename(hierarchy.dir)), ...helper];
  }

  /** Ids of all sandboxes that have a cgroup or a helper cgroup. */
  ids(): Set<SandboxId> {
    const names = this.hierarchies.flatMap(({ dir }) => children(join(dir, this.#parent)));
    return new Set(names.map((name) => name.replace(HELPER_PREFIX, "")).filter(isSandboxId));
  }

  isFrozen(id: SandboxId): boolean {
    return this.freezerState(id) === "frozen";
  }

  freezerState(id: SandboxId): "frozen" | "thawed" | "missing" {
    const freezer = required(this.#with("freezer"));
    const dir = this.#dir(freezer, id);
    const text = readIfThere(`${dir}/${freezer.version === 1 ? "freezer.state" : "cgroup.events"}`);
    if (text === null) return "missing";
    const isFrozen = freezer.version === 1 ? text.startsWith("FROZEN") : fieldOf(text, "frozen") === 1;
    return isFrozen ? "frozen" : "thawed";
  }

  oomKills(id: SandboxId): number {
    const memory = this.#with("memory");
    if (memory === undefined) return 0;
    const file = memory.version === 1 ? "memory.oom_control" : "memory.events";
    return counter(join(this.#dir(memory, id), file), "oom_kill");
  }

  /**
   * Resolves when every process is frozen. Repeats the request, because cgroup v1 gives up on a process that is
   * forking.
   */
  freeze(id: SandboxId, signal: AbortSignal): Promise<void> {
    return this.#settle(id, true, signal);
  }

  thaw(id: SandboxId, signal: AbortSignal): Promise<void> {
    return this.#settle(id, false, signal);
  }

  /**
   * Requests the freeze without waiting for it. As soon as the request is made, no process of the cgroup executes code
   * of its program. Does nothing if the cgroup does not exist.
   */
  requestFreeze(id: SandboxId): void {
    this.#writeIfThere(id, true);
  }

  /** Requests the thaw without waiting for it. Does nothing if the cgroup does not exist. */
  requestThaw(id: SandboxId): void {
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
        // Callers of the API see this message, so it contains no path of the host.
        throw new Error(`the sandbox's cgroup can't be ${frozen ? "frozen" : "thawed"} (${errnoOf(error)})`);
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

  /** Removes the sandbox's cgroups from all hierarchies. Retries while the kernel still cleans up the last process. */
  async remove(id: SandboxId, signal: AbortSignal): Promise<void> {
    while (!this.removeHelper(id)) await this.#clock.sleep(POLL_MS, signal);
    for (const hierarchy of this.hierarchies) {
      while (!removeTree(this.#dir(hierarchy, id))) await this.#clock.sleep(POLL_MS, signal);
    }
  }

  /** Removes the installation's parent cgroups, unless they still contain a sandbox. */
  removeParent(): void {
    for (const hierarchy of this.hierarchies) removeTree(join(hierarchy.dir, this.#parent), false);
  }

  /** Finds the hierarchy of a controller. Cached, because hierarchies do not change while the server runs. */
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

  /** Path of the helper cgroup. It is in the freezer's hierarchy, which every host has and every runtime uses. */
  #helperDir(id: SandboxId): string {
    const { dir } = required(this.#with("freezer"));
    return join(dir, this.#parent, HELPER_PREFIX + id);
  }
}

/** Lines of /proc/PID/cgroup: the controllers of a hierarchy, or "" for v2, and the path of the process's cgroup. */
function linesOf(text: string): { names: string; path: string }[] {
  return text.split("\n").flatMap((line) => {
    const first = line.indexOf(":");
    const second = line.indexOf(":", first + 1);
    return second < 0 ? [] : [{ names: line.slice(first + 1, second), path: line.slice(second + 1) }];
  });
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

/** Enables all controllers for child cgroups. A controller that the kernel refuses to enable here is skipped. */
function delegate({ controllers }: Hierarchy, dir: string): void {
  for (const controller of controllers.filter((name) => name !== "freezer")) {
    try {
      writeFileSync(join(dir, "cgroup.subtree_control"), `+${controller}`, { flag: "r+" });
    } catch (error) {
      if (!["EBUSY", "EINVAL", "ENOENT", "EOPNOTSUPP"].includes(errnoOf(error))) throw error;
    }
  }
}

/** Removes a cgroup, its children first, since a runtime may have created some. Returns false if a cgroup is busy. */
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

const counter = (path: string, name: string): number => fieldOf(readIfThere(path) ?? "", name);

function readIfThere(path: string): string | null {
  try {
    return readFileSync(path, "utf8");
  } catch (error) {
    if (isGone(error)) return null;
    throw error;
  }
}
