import { readFileSync } from "node:fs";
import { statfs } from "node:fs/promises";
import type { Capacity } from "@holdfast/engine";
import type { Machine } from "./machine.ts";

/** Measures CPUs, memory, and the disk that contains the state directory. */
export async function capacity(machine: Machine): Promise<Capacity> {
  const disk = await statfs(machine.layout.stateDir);
  const memory = readFileSync("/proc/meminfo", "utf8");
  return {
    cpus: machine.facts.cpus,
    memoryTotalBytes: kilobytes(memory, "MemTotal") * 1024,
    memoryFreeBytes: kilobytes(memory, "MemAvailable") * 1024,
    diskTotalBytes: disk.blocks * disk.bsize,
    diskFreeBytes: disk.bavail * disk.bsize,
  };
}

/** Reads a field of /proc/meminfo. Throws if it is missing, because a default value could admit too many sandboxes. */
export function kilobytes(meminfo: string, field: string): number {
  const figure = new RegExp(`^${field}:\\s+(\\d+) kB`, "m").exec(meminfo)?.[1];
  if (figure === undefined) throw new Error(`/proc/meminfo has no field ${field}`);
  return Number(figure);
}
