import { readFileSync } from "node:fs";
import { statfs } from "node:fs/promises";
import type { Capacity } from "@holdfast/engine";
import type { Machine } from "./machine.ts";

/** What is there for sandboxes right now, on the file system of the state directory and in memory. */
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

/** Throws where it isn't told: a figure that is made up would let sandboxes in. */
export function kilobytes(meminfo: string, field: string): number {
  const figure = new RegExp(`^${field}:\\s+(\\d+) kB`, "m").exec(meminfo)?.[1];
  if (figure === undefined) throw new Error(`the kernel does not tell ${field}`);
  return Number(figure);
}
