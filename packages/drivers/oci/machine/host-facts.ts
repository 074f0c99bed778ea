import { existsSync, readFileSync, statSync } from "node:fs";
import { availableParallelism } from "node:os";
import { dirname } from "node:path";
import { type Hierarchy, limitsSwap, readHierarchies } from "../proc/hierarchies.ts";
import { readBootId } from "../proc/proc-files.ts";
import { canSetIpcInside } from "./sysctls.ts";

/** Properties of this host that the driver detected at its start. */
export interface HostFacts {
  bootId: string;
  cpus: number;
  hierarchies: Hierarchy[];
  /** Whether the memory limit of a sandbox covers swap too. */
  swapLimited: boolean;
  openFilesMax: number;
  /** Whether the runtime can set sysctls of the sandbox's own IPC namespace. */
  ipcSetInside: boolean;
  runtime: RuntimeFacts;
}

export interface RuntimeFacts {
  name: "runc" | "crun";
  binary: string;
  version: string;
  /** Mount points that are unmounted in the runtime's own mount namespace before it runs. */
  unmount: string[];
}

const OPEN_FILES_WANTED = 65_536;

export async function readHostFacts(): Promise<Omit<HostFacts, "runtime">> {
  const hierarchies = readHierarchies();
  return {
    bootId: readBootId(),
    cpus: availableParallelism(),
    hierarchies,
    swapLimited: limitsSwap(hierarchies),
    openFilesMax: Math.min(OPEN_FILES_WANTED, openFilesHard(readFileSync("/proc/self/limits", "utf8"))),
    ipcSetInside: await canSetIpcInside(),
  };
}

/**
 * Parses this process's hard limit on open files from /proc/self/limits. Sandboxes get no higher limit, because setting
 * one needs a Linux capability that root may lack.
 */
export function openFilesHard(limits: string): number {
  const hard = /^Max open files\s+\S+\s+(\S+)/m.exec(limits)?.[1];
  return hard === undefined || hard === "unlimited" ? OPEN_FILES_WANTED : Number(hard);
}

const OTHERS_EXECUTE = 0o001;

/**
 * Returns whether any user can traverse a directory and all its parents. On the host, the mapped root user has only the
 * rights of an ordinary user, so it can reach no other directories.
 */
export function isPassable(dir: string): boolean {
  for (let at = dir; ; at = dirname(at)) {
    if ((statSync(at).mode & OTHERS_EXECUTE) === 0) return false;
    if (at === dirname(at)) return true;
  }
}

/**
 * Finds a directory at which helpers can mount the state directory a second time. Any user can traverse it, and no
 * runtime uses it.
 */
export function passableAlias(): string {
  const alias = ["/mnt", "/srv", "/opt", "/tmp"].find((dir) => existsSync(dir) && isPassable(dir));
  if (alias === undefined) throw new Error("found no directory that every user can traverse");
  return alias;
}
