import { existsSync, statfsSync } from "node:fs";
import type { SandboxId } from "@holdfast/contract";
import type { Usage } from "@holdfast/engine";
import type { Machine } from "../machine/machine.ts";
import { inBatches } from "../proc/in-batches.ts";
import { diskMountOf, type Mount, readMounts } from "../proc/mount-table.ts";
import { readIo } from "../proc/proc-files.ts";

/** Maximum number of processes per sandbox whose I/O is read in one pass; equals the default limit on processes. */
const PROCESSES_MAX = 512;

/** Measures sandboxes by reading the kernel's counters, in one pass. A sandbox without a cgroup is left out. */
export async function measure(
  machine: Machine,
  ids: readonly SandboxId[],
  signal: AbortSignal,
): Promise<Map<SandboxId, Usage>> {
  const measured = new Map<SandboxId, Usage>();
  let mounts: readonly Mount[] | null = null;
  // The long mount table is read only if needed: few sandboxes have their own disk.
  const table = () => {
    mounts ??= readMounts();
    return mounts;
  };
  for await (const id of inBatches(ids, signal)) {
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

/**
 * Returns the I/O of a sandbox's processes as the sum over those that live. The kernel adds the I/O of an ended child
 * to the parent that reaps it, so the sum includes ended processes.
 */
function ioOfProcesses({ cgroups }: Machine, id: SandboxId): Io {
  const sum: Io = { readBytes: 0, writtenBytes: 0 };
  for (const pid of cgroups.processes(id).slice(0, PROCESSES_MAX)) {
    const io = readIo(pid);
    sum.readBytes += io?.readBytes ?? 0;
    sum.writtenBytes += io?.writtenBytes ?? 0;
  }
  return sum;
}

/**
 * Usage of the sandbox's own disk; null if no such disk is mounted. The limit excludes the blocks that are reserved for
 * the keeper.
 */
function diskOf({ layout }: Machine, id: SandboxId, mounts: () => readonly Mount[]): Usage["disk"] {
  const places = layout.sandbox(id);
  if (!existsSync(places.disk) || diskMountOf(mounts(), places) === "missing") return null;
  const { blocks, bfree, bavail, bsize } = statfsSync(places.disk);
  const usedBytes = (blocks - bfree) * bsize;
  return { usedBytes, limitBytes: usedBytes + bavail * bsize };
}
