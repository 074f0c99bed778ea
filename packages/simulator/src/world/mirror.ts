import {
  type CheckpointId,
  COUNTERS,
  type Counter,
  type DriveId,
  type ExecId,
  type ProcessId,
  type SandboxId,
} from "@holdfast/contract";
import type {
  Change,
  CheckpointSummary,
  Commit,
  DriveRecord,
  ExecRecord,
  ProcessRecord,
  SandboxRecord,
  Store,
} from "@holdfast/engine";

const ALL = 10_000;

/**
 * A copy of the committed content of the database. Promises are about stored data, and this copy can be examined often
 * at little cost. After every step it is compared with the database itself.
 */
export class Mirror {
  readonly sandboxes = new Map<SandboxId, SandboxRecord>();
  readonly execs = new Map<ExecId, ExecRecord>();
  readonly checkpoints = new Map<CheckpointId, CheckpointSummary>();
  readonly processes = new Map<ProcessId, ProcessRecord>();
  readonly drives = new Map<DriveId, DriveRecord>();
  /** Sandboxes whose record in the database is damaged. The mirror still has the content of the record. */
  readonly unreadable = new Set<SandboxId>();
  readonly unreadableDrives = new Set<DriveId>();
  /** Sandboxes that are gone and whose record in the database is damaged. */
  readonly #scrapped = new Set<SandboxId>();
  /** The totals that the database should have, counted from the committed changes. */
  counts = Object.fromEntries(COUNTERS.map((name) => [name, 0])) as Record<Counter, number>;

  /** Number of commits so far. */
  commits = 0;

  /** Applies a commit, and returns the exec records that it removed. */
  apply({ changes }: Commit): ExecRecord[] {
    this.commits += 1;
    const gone = changes.flatMap((change) => (change.kind === "exec.forget" ? this.#ended(change.ids) : []));
    for (const change of changes) this.#apply(change);
    return gone;
  }

  #ended(ids: readonly ExecId[]): ExecRecord[] {
    return ids.flatMap((id) => {
      const record = this.execs.get(id);
      return record === undefined || record.endedAt === null ? [] : [record];
    });
  }

  #apply(change: Change): void {
    switch (change.kind) {
      case "sandbox.insert":
      case "sandbox.update":
        this.#countPhase(change.record);
        this.sandboxes.set(change.record.id, { ...change.record });
        if (change.record.phase.name === "gone") this.#removeOwnedBy(change.record.id);
        return;
      case "process.insert":
        for (const { id, sandboxId, name } of this.processes.values())
          if (sandboxId === change.record.sandboxId && name === change.record.name) this.processes.delete(id);
        this.processes.set(change.record.id, change.record);
        return;
      case "process.update":
        this.processes.set(change.record.id, change.record);
        return;
      case "process.remove":
        this.processes.delete(change.id);
        return;
      case "checkpoint.insert":
        this.checkpoints.set(change.record.id, change.record);
        return;
      case "checkpoint.remove":
        this.checkpoints.delete(change.id);
        return;
      case "exec.insert":
      case "exec.end":
        this.counts[change.kind === "exec.insert" ? "execsStarted" : "execsEnded"] += 1;
        this.execs.set(change.record.id, { ...change.record });
        return;
      case "exec.forget":
        for (const { id } of this.#ended(change.ids)) this.execs.delete(id);
        return;
      case "sandbox.scrap":
        this.#scrap(change.id, change.at);
        return;
      case "drive.insert":
      case "drive.update":
        this.drives.set(change.record.id, change.record);
        return;
      case "drive.remove":
        this.drives.delete(change.id);
        this.unreadableDrives.delete(change.id);
        return;
      case "sandbox.touch":
      case "alert.fire":
      case "alert.clear":
      case "delivery.insert":
      case "delivery.update":
      case "prune":
        return;
    }
  }

  /** Notes that a sandbox with a damaged record is gone. */
  #scrap(id: SandboxId, at: number): void {
    const record = this.sandboxes.get(id);
    this.unreadable.delete(id);
    this.#scrapped.add(id);
    this.#removeOwnedBy(id);
    if (record === undefined) return;
    const gone = { phase: { name: "gone", cause: null }, lease: { state: "none" }, instance: null } as const;
    const next = { ...record, ...gone, nameHeld: false, endedAt: at, revision: record.revision + 1 };
    this.#countPhase(next);
    this.sandboxes.set(id, next);
  }

  #removeOwnedBy(id: SandboxId): void {
    for (const process of this.processes.values())
      if (process.sandboxId === id) this.processes.delete(process.id);
    for (const { id: checkpointId, sandboxId } of this.checkpoints.values())
      if (sandboxId === id) this.checkpoints.delete(checkpointId);
  }

  /** Forgets the sandboxes whose records were removed from the database, and returns these records. */
  prune(left: ReadonlySet<string>): SandboxRecord[] {
    const pruned = [...this.sandboxes.values()].filter(({ id }) => !left.has(id));
    for (const { id } of pruned) this.sandboxes.delete(id);
    return pruned;
  }

  #countPhase({ id, phase }: SandboxRecord): void {
    const before = this.sandboxes.get(id)?.phase.name;
    if (before === undefined) this.counts.created += 1;
    if (phase.name === "gone" && before !== "gone") this.counts.terminated += 1;
    if (phase.name === "failed" && before !== "failed") this.counts.failed += 1;
  }

  /** Reads everything again after a power cut has reset the database to an earlier state. */
  async reload(store: Store): Promise<void> {
    const records = await store.sandboxes({ includeGone: true, limit: ALL });
    const isDamaged = ({ id }: SandboxRecord) => this.unreadable.has(id) || this.#scrapped.has(id);
    const damaged = [...this.sandboxes.values()].filter(isDamaged);
    const all = [...damaged, ...records];
    const execs = await Promise.all(all.map(({ id }) => store.execs(id, { limit: ALL })));
    const checkpoints = await Promise.all(all.map(({ id }) => store.checkpoints(id)));
    const unreadable = [...this.drives.values()].filter(({ id }) => this.unreadableDrives.has(id));
    const drives = [...unreadable, ...(await store.drives())];
    const processes = await store.processes();
    this.processes.clear();
    for (const process of processes) this.processes.set(process.id, process);
    this.drives.clear();
    for (const drive of drives) this.drives.set(drive.id, drive);
    this.sandboxes.clear();
    this.execs.clear();
    this.checkpoints.clear();
    for (const checkpoint of checkpoints.flat()) this.checkpoints.set(checkpoint.id, checkpoint);
    for (const record of all) this.sandboxes.set(record.id, record);
    for (const exec of execs.flat()) this.execs.set(exec.id, exec);
  }

  /** Returns the sandbox with this id, or the one that currently has this name. */
  readonly recordOf = (ref: string): SandboxRecord | undefined =>
    this.sandboxes.get(ref as SandboxId) ??
    [...this.sandboxes.values()].find(({ name, nameHeld }) => nameHeld && name === ref);

  live(): SandboxRecord[] {
    return [...this.sandboxes.values()].filter(({ phase }) => phase.name !== "gone");
  }

  /** Returns the live sandboxes whose record a server can read. */
  readable(): SandboxRecord[] {
    return this.live().filter(({ id }) => !this.unreadable.has(id));
  }

  openExecs(): ExecRecord[] {
    return [...this.execs.values()].filter(({ endedAt }) => endedAt === null);
  }
}
