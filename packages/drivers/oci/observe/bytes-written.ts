import type { SandboxId } from "@holdfast/contract";
import type { Cgroups } from "../proc/cgroup.ts";
import { inBatches } from "../proc/in-batches.ts";
import { readIo, readLiving } from "../proc/proc-files.ts";

interface Writer {
  startTime: string;
  bytes: number;
}

interface Account {
  total: number;
  /** Bytes written by each process that was alive at the last reading. The key is the process's pid. */
  writers: Map<number, Writer>;
}

/**
 * Counts the bytes that the processes of sandboxes have written. A process's counter disappears when it ends, so this
 * class adds up the growth between readings, and the total never falls. Bytes written between the last reading and a
 * process's end are missed: the totals show which sandboxes write, not how much is on disk.
 */
export class BytesWritten {
  readonly #cgroups: Pick<Cgroups, "members">;
  readonly #accounts = new Map<SandboxId, Account>();

  constructor(cgroups: Pick<Cgroups, "members">) {
    this.#cgroups = cgroups;
  }

  async read(ids: readonly SandboxId[], signal: AbortSignal): Promise<Map<SandboxId, number>> {
    const totals = new Map<SandboxId, number>();
    for await (const id of inBatches(ids, signal)) totals.set(id, this.#readOne(id));
    return totals;
  }

  forget(id: SandboxId): void {
    this.#accounts.delete(id);
  }

  #readOne(id: SandboxId): number {
    const before = this.#accounts.get(id);
    const writers = new Map<number, Writer>();
    let total = before?.total ?? 0;
    for (const pid of this.#cgroups.members(id)) {
      const startTime = readLiving(pid)?.startTime;
      const bytes = readIo(pid)?.writtenBytes;
      if (startTime === undefined || bytes === undefined) continue;
      const known = before?.writers.get(pid);
      total += Math.max(0, bytes - (known?.startTime === startTime ? known.bytes : 0));
      writers.set(pid, { startTime, bytes });
    }
    this.#accounts.set(id, { total, writers });
    return total;
  }
}
