import { existsSync, statfsSync } from "node:fs";
import type { SandboxId } from "@holdfast/contract";
import type { Usage } from "@holdfast/engine";
import type { Machine } from "./machine.ts";
import { diskMountOf, type Mount, readMounts } from "./mounts.ts";
import { readIo } from "./processes.ts";
import { inTurns } from "./turns.ts";

/** Of one sandbox, in one pass: its limit on processes is higher only where somebody wanted that. */
const PROCESSES_MAX = 512;

/** One pass over counters that the kernel keeps. Whoever has no cgroup is left out. */
export async function measure(
  machine: Machine,
  ids: readonly SandboxId[],
  signal: AbortSignal,
): Promise<Map<SandboxId, Usage>> {
  const measured = new Map<SandboxId, Usage>();
  let mounts: readonly Mount[] | null = null;
  // Few sandboxes have a disk of their own, and the table is long.
  const table = () => {
    mounts ??= readMounts();
    return mounts;
  };
  for await (const id of inTurns(ids, signal)) {
    const usage = measureOne(machine, id, table);
    if (usage !== null) measured.set(id, usage);
  }
  return measured;
}

function measureOne(machine: Machine, id: SandboxId, mounts: () => readonly Mount[]): Usage | null {
  const at = machine.clock.now();
  const counted = machine.cgroups.counters(id);
  if (counted === null) return null;
  const { io, ...counters } = counted;
  const { readBytes, writtenBytes } = io.isWhole ? io : largest(io, ioOfProcesses(machine, id));
  const disk = diskOf(machine, id, mounts);
  return { at, ...counters, readBytes, writtenBytes, ioOperations: io.operations, disk };
}

interface Io {
  readBytes: number;
  writtenBytes: number;
}

const largest = (one: Io, other: Io): Io => ({
  readBytes: Math.max(one.readBytes, other.readBytes),
  writtenBytes: Math.max(one.writtenBytes, other.writtenBytes),
});

/** Whoever asks how a child ended takes its figures over: with the keeper's own, those who have ended are among them. */
function ioOfProcesses({ cgroups }: Machine, id: SandboxId): Io {
  const sum: Io = { readBytes: 0, writtenBytes: 0 };
  for (const pid of cgroups.processes(id).slice(0, PROCESSES_MAX)) {
    const io = readIo(pid);
    sum.readBytes += io?.readBytes ?? 0;
    sum.writtenBytes += io?.writtenBytes ?? 0;
  }
  return sum;
}

/** Of its own file system, where that is mounted. What only the keeper may use is not there for commands, and not counted. */
function diskOf({ layout }: Machine, id: SandboxId, mounts: () => readonly Mount[]): Usage["disk"] {
  const places = layout.sandbox(id);
  if (!existsSync(places.disk) || diskMountOf(mounts(), places) === "missing") return null;
  const { blocks, bfree, bavail, bsize } = statfsSync(places.disk);
  const usedBytes = (blocks - bfree) * bsize;
  return { usedBytes, limitBytes: usedBytes + bavail * bsize };
}
