import { existsSync, readFileSync, statSync } from "node:fs";
import { availableParallelism } from "node:os";
import { dirname } from "node:path";
import { type Hierarchy, limitsSwap, readHierarchies } from "./cgroup.ts";
import { canSetIpcInside } from "./kernel.ts";
import { readBootId } from "./processes.ts";

/** What the driver found out about this machine and goes by. */
export interface HostFacts {
  bootId: string;
  cpus: number;
  hierarchies: Hierarchy[];
  /** Whether swap counts into the memory limit. */
  swapLimited: boolean;
  openFilesMax: number;
  /** Whether the runtime can set what belongs to the sandbox's own ipc namespace. */
  ipcSetInside: boolean;
  runtime: RuntimeFacts;
}

export interface RuntimeFacts {
  name: "runc" | "crun";
  binary: string;
  version: string;
  /** What must not be mounted when it starts. */
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

/** A limit above our own hard one takes a capability that root may lack. */
export function openFilesHard(limits: string): number {
  const hard = /^Max open files\s+\S+\s+(\S+)/m.exec(limits)?.[1];
  return hard === undefined || hard === "unlimited" ? OPEN_FILES_WANTED : Number(hard);
}

const OTHERS_PASS = 0o001;

/** Whether a user without rights can reach what is below a directory: a mapped root has none outside its files. */
export function isPassable(dir: string): boolean {
  for (let at = dir; ; at = dirname(at)) {
    if ((statSync(at).mode & OTHERS_PASS) === 0) return false;
    if (at === dirname(at)) return true;
  }
}

/** A directory that is there on every host, passable, and that no runtime looks into. */
export function passableAlias(): string {
  const alias = ["/mnt", "/srv", "/opt", "/tmp"].find((dir) => existsSync(dir) && isPassable(dir));
  if (alias === undefined) throw new Error("no directory that everyone can pass through was found");
  return alias;
}
