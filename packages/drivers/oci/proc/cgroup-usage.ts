import { fieldOf } from "./fields.ts";

/** Resource counters of a cgroup. cgroup v1 and v2 report them in different files and formats. */
export interface Counters {
  cpuMs: number;
  throttledMs: number;
  memoryBytes: number;
  processes: number;
  pidsRefused: number;
  io: IoCounters;
}

interface IoCounters {
  readBytes: number;
  writtenBytes: number;
  operations: number;
  /** Whether the kernel attributes all disk I/O of the processes to their cgroup. If not, the counts are too low. */
  isWhole: boolean;
}

/** Read access to the files of a cgroup, in the hierarchy of one controller. */
interface Control {
  version: 1 | 2;
  /** Returns null if the file does not exist. */
  read: (file: string) => string | null;
}

export type Controls = (controller: string) => Control | null;

/** Reads all counters of a cgroup. Returns null if the cgroup does not exist. */
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

/** Bytes of memory without a file on disk: anonymous memory of processes, and shared memory including tmpfs. */
export function memoryOf(controls: Controls): number {
  const memory = controls("memory");
  const stat = memory?.read("memory.stat") ?? "";
  const names = memory?.version === 1 ? ["total_rss", "total_shmem"] : ["anon", "shmem"];
  return names.reduce((sum, name) => sum + fieldOf(stat, name), 0);
}

/**
 * Reads the disk I/O counters. cgroup v1 undercounts: newer kernels count only if a throttle limit is set, and buffered
 * writes, which are most writes, are never attributed to the cgroup.
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
