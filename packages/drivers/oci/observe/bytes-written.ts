import type { SandboxId } from "@holdfast/contract";
import type { Cgroups } from "./cgroup.ts";
import { readIo, readLiving } from "./processes.ts";
import { inTurns } from "./turns.ts";

interface Writer {
  startTime: string;
  bytes: number;
}

interface Account {
  total: number;
  /** By pid: what each that lived at the last look had written by then. */
  writers: Map<number, Writer>;
}

/**
 * How much the processes of sandboxes have written. A process takes its own figure with it when it ends, so growth is
 * added up from look to look, and the total never falls. What a process writes between the last look and its end is
 * missed: this tells who writes, not how much is on the disk.
 */
export class Written {
  readonly #cgroups: Pick<Cgroups, "members">;
  readonly #accounts = new Map<SandboxId, Account>();

  constructor(cgroups: Pick<Cgroups, "members">) {
    this.#cgroups = cgroups;
  }

  async read(ids: readonly SandboxId[], signal: AbortSignal): Promise<Map<SandboxId, number>> {
    const totals = new Map<SandboxId, number>();
    for await (const id of inTurns(ids, signal)) totals.set(id, this.#look(id));
    return totals;
  }

  forget(id: SandboxId): void {
    this.#accounts.delete(id);
  }

  #look(id: SandboxId): number {
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
