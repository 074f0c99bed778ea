import type { Commit, Store } from "@holdfast/engine";
import type { Faults } from "../schedule/armed-faults.ts";
import type { FaultName } from "../schedule/fault-table.ts";
import type { DriveStage, ForkStage, SleepStage } from "../schedule/fault-targets.ts";
import type { VirtualTime } from "../time/virtual-time.ts";
import type { SimulatedDatabase, Snapshot } from "./database.ts";
import type { Fact } from "./facts.ts";
import type { Mirror } from "./mirror.ts";
import { never, type Process } from "./process.ts";

/** Time after which the database flushes writes that no commit waits for. */
const LATE_FLUSH_MS = 200;

/**
 * Models the disk under the database: it knows which writes a power cut would still undo. It is used only if the
 * schedule has a power cut, because a copy of the database costs more than most commits.
 */
export class Durability {
  readonly #database: SimulatedDatabase;
  readonly #time: VirtualTime;
  readonly #mirror: Mirror;
  readonly #matters: boolean;
  #before: { snapshot: Snapshot; counts: Mirror["counts"] } | null = null;
  #flushes = 0;

  constructor(parts: {
    database: SimulatedDatabase;
    time: VirtualTime;
    mirror: Mirror;
    matters: boolean;
  }) {
    this.#database = parts.database;
    this.#time = parts.time;
    this.#mirror = parts.mirror;
    this.#matters = parts.matters;
  }

  /** Called before a commit that must survive the death of the server, but that a power cut may undo. */
  relaxed(): void {
    if (!this.#matters || this.#before !== null) return;
    this.#before = { snapshot: this.#database.snapshot(), counts: { ...this.#mirror.counts } };
    const flush = this.#flushes;
    this.#time.after(LATE_FLUSH_MS, () => {
      if (this.#flushes === flush) this.flushed();
    });
  }

  flushed(): void {
    this.#flushes += 1;
    this.#before = null;
  }

  /** Resets the database to what is on the simulated disk. */
  async cut(): Promise<void> {
    const before = this.#before;
    this.flushed();
    if (before === null) return;
    this.#database.restore(before.snapshot);
    await this.#mirror.reload(this.#database.store);
    this.#mirror.counts = before.counts;
  }
}

export interface ServerStoreParts {
  database: SimulatedDatabase;
  durability: Durability;
  mirror: Mirror;
  faults: Faults;
  time: VirtualTime;
  process: Process;
  /** Cuts the host's power. */
  blackout(downMs: number, options?: { powerCut: boolean }): void;
  report(fact: Fact): void;
  note(line: () => string): void;
}

/**
 * The shared store as one server sees it. It gives no answer to a dead server. A fault can kill the server right before
 * or right after a write.
 */
export function serverStore(parts: ServerStoreParts): Store {
  const { database, process } = parts;
  const guard =
    (ask: (...given: unknown[]) => Promise<unknown>) =>
    (...given: unknown[]): Promise<unknown> =>
      process.mayCall() ? process.delivers(ask(...given)) : never();
  const verbs = Object.entries(database.store).filter(([, verb]) => typeof verb === "function");
  return {
    ...(Object.fromEntries(verbs.map(([name, verb]) => [name, guard(verb)])) as unknown as Store),
    commit: (commit) => (process.mayCall() ? process.delivers(write(parts, commit)) : never()),
  };
}

async function write(parts: ServerStoreParts, commit: Commit): Promise<void> {
  const { database, durability, mirror, faults, time, process, report, note } = parts;
  const stage = stageOf(commit, mirror);
  const asleep = stage === null ? null : faults.take("commit.asleep", stage);
  const fork = forkStageOf(commit, mirror);
  const forking = fork === null ? null : faults.take("commit.fork", fork);
  const drive = driveStageOf(commit, mirror);
  const driving = drive === null ? null : faults.take("commit.drive", drive);
  const fault = asleep ?? forking ?? driving ?? faults.take("commit", commit.outlives ?? "host");
  if (fault !== null && BEFORE.has(fault.kind)) {
    process.die("right before a write", fault.ms);
    return never();
  }
  if (fault?.kind === "store-refuses") throw new Error("disk I/O error");
  if (fault?.kind === "store-slow") {
    await time.pause(fault.ms);
    // If the server died while the write was delayed, the write does not happen.
    if (!process.alive) return never();
  }
  if (commit.outlives === "server") durability.relaxed();
  time.inProgress += 1;
  try {
    await database.store.commit(commit);
    if (commit.outlives !== "server") durability.flushed();
    for (const record of mirror.apply(commit)) report({ type: "forgotten", record });
    note(() => `stored ${describe(commit)}`);
    for (const change of commit.changes) if (change.kind === "prune") pruned(parts, change);
    for (const change of commit.changes) report({ type: "stored", change });
  } finally {
    time.inProgress -= 1;
  }
  if (fault !== null && AFTER.has(fault.kind)) process.die("right after a write", fault.ms);
  if (fault?.kind === "power-cut-after-start") parts.blackout(fault.ms);
  if (fault?.kind === "power-cut-asleep") parts.blackout(fault.ms);
  if (fault !== null && REBOOTS.has(fault.kind)) parts.blackout(fault.ms, { powerCut: false });
}

const BEFORE: ReadonlySet<FaultName> = new Set([
  "crash-before-write",
  "crash-asleep-before-write",
  "crash-forking-before-write",
  "crash-driving-before-write",
]);
const AFTER: ReadonlySet<FaultName> = new Set([
  "crash-after-write",
  "crash-asleep-after-write",
  "crash-forking-after-write",
  "crash-driving-after-write",
]);
const REBOOTS: ReadonlySet<FaultName> = new Set(["reboot-asleep", "reboot-forking", "reboot-driving"]);

/** Returns which stage of a drive or mount a commit stores; null if the commit is about something else. */
function driveStageOf({ changes, events = [] }: Commit, mirror: Mirror): DriveStage | null {
  for (const { type } of events) {
    const stage = STAGE_OF_EVENT[type];
    if (stage !== undefined) return stage;
  }
  for (const change of changes) {
    if (change.kind === "drive.insert" || change.kind === "drive.update") return change.record.phase;
    if (change.kind === "drive.remove") return "removed";
    if (change.kind !== "sandbox.insert" && change.kind !== "sandbox.update") continue;
    const { id, mounts } = change.record;
    const before = mirror.sandboxes.get(id)?.mounts ?? [];
    if (mounts.length > before.length) return "wanted";
    const wasWanted = (at: string) => before.some(({ path, state }) => path === at && state === "wanted");
    if (mounts.some(({ state, path }) => state === "removing" && wasWanted(path))) return "removing";
  }
  return null;
}

const STAGE_OF_EVENT: Partial<Record<string, DriveStage>> = {
  "mount.added": "mounted",
  "mount.failed": "failed",
  "mount.removed": "unmounted",
};

/** Returns which stage of a checkpoint or fork a commit stores; null if the commit is about something else. */
function forkStageOf({ changes }: Commit, mirror: Mirror): ForkStage | null {
  for (const change of changes) {
    if (change.kind === "checkpoint.insert") return "saved";
    if (change.kind === "checkpoint.remove") return "removed";
    if (change.kind === "sandbox.insert" && change.record.forkedFrom !== null) return "forked";
    if (change.kind !== "sandbox.update") continue;
    const { id, phase, forkedFrom, instance } = change.record;
    if (phase.name === "suspending" && phase.saving) return "saving";
    if (forkedFrom === null) continue;
    if (phase.name === "launching") return instance === null ? "launching" : "launched";
    if (phase.name === "running" && mirror.sandboxes.get(id)?.phase.name === "launching") return "serving";
  }
  return null;
}

/** Returns which stage of a standby or wake a commit stores; null if the commit is about something else. */
function stageOf({ changes }: Commit, mirror: Mirror): SleepStage | null {
  for (const change of changes) {
    if (change.kind !== "sandbox.update") continue;
    const { phase, id } = change.record;
    if (phase.name === "waking") return phase.consumed ? "spent" : "waking";
    if (phase.name === "suspending" || phase.name === "standby") return phase.name;
    const before = mirror.sandboxes.get(id)?.phase.name;
    if (before === "waking" || before === "suspending") return "awake";
  }
  return null;
}

function pruned(
  { mirror, database, report }: ServerStoreParts,
  { goneBefore }: { goneBefore: number },
): void {
  for (const record of mirror.prune(database.sandboxIds())) report({ type: "pruned", record, goneBefore });
}

function describe({ changes, events = [] }: Commit): string {
  const what = changes.map((change) => {
    if (!("record" in change)) return change.kind;
    const { record } = change;
    if ("lease" in record)
      return `${change.kind} ${record.id.slice(-3)} ${record.phase.name}/${record.lease.state}`;
    if ("phase" in record) return `${change.kind} ${record.id.slice(-3)} ${record.phase}`;
    if ("threshold" in record) return `${change.kind} ${record.key}`;
    if ("alert" in record) return `${change.kind} ${record.alert.key} ${record.state}`;
    return `${change.kind} ${record.id} ${"status" in record ? record.status : record.name}`;
  });
  return [...what, ...events.map(({ type }) => type)].join(", ");
}
