import { existsSync, readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { isGone } from "./errno.ts";
import { words } from "./fields.ts";
import { isVisible, type Mount, readMounts } from "./mount-table.ts";

/**
 * A mounted cgroup hierarchy. A host has one v2 hierarchy, or several v1 hierarchies with different controllers, or
 * both. An instance has a directory of the same name in every hierarchy that the runtime uses. All code that depends on
 * the cgroup version is in this file, in `cgroup.ts` and in `cgroup-usage.ts`.
 */
export interface Hierarchy {
  version: 1 | 2;
  dir: string;
  /**
   * The cgroup that is mounted at `dir`, as /proc/PID/cgroup shows it: "/" for the whole hierarchy. In a container it
   * may be the container's own cgroup.
   */
  root: string;
  controllers: string[];
}

/** Controllers needed for limits and freezing. In cgroup v2, freezing is built in. */
export const NEEDED_CONTROLLERS = ["cpu", "memory", "pids", "freezer"] as const;

const V1_CONTROLLER =
  /^(cpu|cpuacct|cpuset|memory|pids|freezer|devices|blkio|net_cls|net_prio|perf_event|hugetlb|rdma|misc|name=.+)$/;

/** Directory where runtimes look for cgroups. */
const STANDARD_DIR = "/sys/fs/cgroup";

/** The controllers of a v1 mount, or "unified" for a v2 mount; null for a mount of another type. */
function hierarchyKey({ fsType, superOptions }: Mount): string | null {
  if (fsType === "cgroup2") return "unified";
  return fsType === "cgroup" ? superOptions.filter((word) => V1_CONTROLLER.test(word)).join() : null;
}

/**
 * Finds the hierarchies in a mount table. A hierarchy may be mounted several times: the root file systems of other
 * containers contain such mounts too, and one mount may cover another. Of several mounts, a visible one is preferred,
 * then one in the standard directory, which the runtime uses, then one that contains the cgroup of this process. `own`
 * is the content of /proc/self/cgroup.
 */
export function hierarchiesOf(
  mounts: readonly Mount[],
  readControllers: (dir: string) => string[],
  own = "",
): Hierarchy[] {
  const found = new Map<string, { mount: Mount; rank: number }>();
  for (const mount of mounts) {
    const key = hierarchyKey(mount);
    if (key === null) continue;
    const rank = rankOf(mounts, mount, ownCgroup(own, key));
    const best = found.get(key);
    if (best === undefined || rank > best.rank) found.set(key, { mount, rank });
  }
  return [...found].map(([key, { mount }]) => {
    const { mountPoint: dir, root } = mount;
    return key === "unified"
      ? { version: 2, dir, root, controllers: [...readControllers(dir), "freezer"] }
      : { version: 1, dir, root, controllers: key.split(",") };
  });
}

function rankOf(mounts: readonly Mount[], mount: Mount, own: string | null): number {
  const isStandard = mount.mountPoint === STANDARD_DIR || mount.mountPoint.startsWith(`${STANDARD_DIR}/`);
  const isOurs = own !== null && isBelow(mount.root, own);
  return (isVisible(mounts, mount) ? 4 : 0) + (isStandard ? 2 : 0) + (isOurs ? 1 : 0);
}

/**
 * Returns the cgroup of a process in a hierarchy, from the process's /proc/PID/cgroup; null if the process is in none.
 */
function ownCgroup(text: string, key: string): string | null {
  for (const line of text.split("\n")) {
    const [, names, path] = /^\d+:([^:]*):(.*)$/.exec(line) ?? [];
    if (names !== undefined && path !== undefined && names === (key === "unified" ? "" : key)) return path;
  }
  return null;
}

export const isBelow = (root: string, path: string): boolean =>
  root === "/" || path === root || path.startsWith(`${root}/`);

export const readHierarchies = (): Hierarchy[] =>
  hierarchiesOf(
    readMounts(),
    (dir) => words(readFileSync(join(dir, "cgroup.controllers"), "utf8")),
    readFileSync("/proc/self/cgroup", "utf8"),
  );

/**
 * Whether the mounted cgroup lies outside the cgroup namespace of this process. The kernel then shows its path with
 * "/..".
 */
export const isOutsideNamespace = ({ root }: Hierarchy): boolean => root === "/.." || root.startsWith("/../");

export const describeOutside = ({ dir }: Hierarchy): string =>
  `the cgroups mounted at ${dir} lie outside the server's cgroup namespace, so CRIU can't restore processes into them. Mount cgroups inside the namespace, or start the server in the namespace of the mount.`;

/**
 * Finds the hierarchy of a controller. If both cgroup versions list the controller, v1 is used: a controller mounted in
 * v1 is inactive in v2.
 */
export function hierarchyWith(hierarchies: readonly Hierarchy[], controller: string): Hierarchy | undefined {
  const having = hierarchies.filter((hierarchy) => hierarchy.controllers.includes(controller));
  return having.find((hierarchy) => hierarchy.version === 1) ?? having[0];
}

/** Whether the host can limit swap together with memory. */
export function limitsSwap(hierarchies: readonly Hierarchy[]): boolean {
  const memory = hierarchyWith(hierarchies, "memory");
  if (memory === undefined) return false;
  if (memory.version === 1) return existsSync(join(memory.dir, "memory.memsw.limit_in_bytes"));
  return children(memory.dir).some((name) => existsSync(join(memory.dir, name, "memory.swap.max")));
}

/** Names of the child cgroups of a cgroup; none if the cgroup does not exist. */
export function children(dir: string): string[] {
  try {
    return readdirSync(dir, { withFileTypes: true })
      .filter((entry) => entry.isDirectory())
      .map((entry) => entry.name);
  } catch (error) {
    if (isGone(error)) return [];
    throw error;
  }
}
