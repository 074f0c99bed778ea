import { fieldOf } from "./fields.ts";

/** What the kernel has counted for a cgroup. Each version says it in files and words of its own. */
export interface Counters {
  cpuMs: number;
  throttledMs: number;
  memoryBytes: number;
  processes: number;
  pidsRefused: number;
  io: IoCounters;
}

export interface IoCounters {
  readBytes: number;
  writtenBytes: number;
  operations: number;
  /** False where some of what reached a disk is counted for nobody, or all of it. */
  isWhole: boolean;
}

/** The cgroup in the hierarchy that has a controller. */
export interface Control {
  version: 1 | 2;
  /** Null where there is no such file. */
  read: (file: string) => string | null;
}

export type Controls = (controller: string) => Control | null;

/** Null where the cgroup is not there. */
export function readCounters(controls: Controls): Counters | null {
  const pids = controls("pids");
  const cpu = cpuOf(controls);
  const current = pids?.read("pids.current") ?? null;
  if (cpu === null && current === null) return null;
  return {
    cpuMs: cpu?.usedMs ?? 0,
    throttledMs: cpu?.throttledMs ?? 0,
    memoryBytes: memoryOf(controls),
    processes: Number(current ?? 0),
    pidsRefused: fieldOf(pids?.read("pids.events") ?? "", "max"),
    io: ioOf(controls),
  };
}

function cpuOf(controls: Controls): { usedMs: number; throttledMs: number } | null {
  const cpu = controls("cpu");
  const stat = cpu?.read("cpu.stat") ?? null;
  if (cpu?.version === 2 && stat !== null) {
    const ms = (name: string) => fieldOf(stat, name) / 1e3;
    return { usedMs: ms("usage_usec"), throttledMs: ms("throttled_usec") };
  }
  const used = controls("cpuacct")?.read("cpuacct.usage") ?? null;
  if (used === null) return null;
  return { usedMs: Number(used) / 1e6, throttledMs: fieldOf(stat ?? "", "throttled_time") / 1e6 };
}

/** Of memory that is in no file: what its processes have, and what lies in memory file systems. */
export function memoryOf(controls: Controls): number {
  const memory = controls("memory");
  const stat = memory?.read("memory.stat") ?? "";
  const names = memory?.version === 1 ? ["total_rss", "total_shmem"] : ["anon", "shmem"];
  return names.reduce((sum, name) => sum + fieldOf(stat, name), 0);
}

/**
 * Version 1 counts nothing on newer kernels unless a limit is set, and never what is written later than it was asked
 * for, which is most of it.
 */
function ioOf(controls: Controls): IoCounters {
  const stat = controls("io")?.read("io.stat") ?? null;
  if (stat !== null) {
    const sum = (name: string) => sumOf(stat, new RegExp(`\\b${name}=(\\d+)`, "g"));
    return {
      readBytes: sum("rbytes"),
      writtenBytes: sum("wbytes"),
      operations: sum("rios") + sum("wios"),
      isWhole: true,
    };
  }
  const blkio = controls("blkio");
  const bytes = blkio?.read("blkio.throttle.io_service_bytes") ?? "";
  const operations = bytes.includes(":") ? (blkio?.read("blkio.throttle.io_serviced") ?? "") : "";
  return {
    readBytes: sumOf(bytes, READ),
    writtenBytes: sumOf(bytes, WRITTEN),
    operations: sumOf(operations, READ) + sumOf(operations, WRITTEN),
    isWhole: false,
  };
}

const READ = /^\d+:\d+ Read (\d+)$/gm;
const WRITTEN = /^\d+:\d+ Write (\d+)$/gm;

const sumOf = (text: string, form: RegExp): number =>
  [...text.matchAll(form)].reduce((sum, [, number]) => sum + Number(number), 0);
