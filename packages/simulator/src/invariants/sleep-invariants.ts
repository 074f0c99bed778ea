import type { CheckpointId, SandboxId } from "@holdfast/contract";
import type { ExecRecord, KeptMemory, SandboxRecord } from "@holdfast/engine";
import type { SimulatedInstance } from "../world/host.ts";
import { otherName } from "./exec-ids.ts";
import type { Invariant, Scene } from "./invariant.ts";

/** Facts about checkpoints that can't be derived from the files on disk. */
export class SleepHistory {
  /**
   * Checkpoints whose memory was used: an instance has run with it since the checkpoint was written or restored. The
   * value is the pid of that instance.
   */
  readonly #ranIn = new Map<CheckpointId, number>();
  /** Checkpoints that a fault damaged. The engine is not to blame if they can't be restored. */
  readonly harmed = new Set<CheckpointId>();

  /**
   * Notes that an instance runs. Returns the pid of an earlier instance that ran with the memory of the same
   * checkpoint, or null.
   */
  resumed({ pid, origin, dumps }: SimulatedInstance): number | null {
    const before = origin === null ? undefined : this.#ranIn.get(origin);
    for (const id of [...(origin === null ? [] : [origin]), ...dumps])
      if (!this.#ranIn.has(id)) this.#ranIn.set(id, pid);
    return before === undefined || before === pid ? null : before;
  }
}

const short = (id: string): string => id.slice(-3);

const wokenOnce: Invariant = {
  name: "woken-once",
  promise: "A checkpoint becomes a running instance at most once, and only after it is stored as spent.",
  witnessed({ history, mirror }, fact) {
    if (fact.type !== "resumed") return null;
    const { instance, sandboxId } = fact;
    const what = `an instance of ${short(sandboxId)}`;
    const before = history.sleep.resumed(instance);
    if (instance.origin === null) return null;
    if (before !== null) return `${what} runs with memory that has run in process ${before}`;
    if (instance.isHalf) return `${what} runs, and half of it was restored`;
    const phase = mirror.sandboxes.get(sandboxId)?.phase;
    const isUnspent = phase?.name === "standby" || (phase?.name === "waking" && !phase.consumed);
    return isUnspent ? `${what} runs out of a checkpoint that is not stored as spent` : null;
  },
};

const memoryAsNewAsFiles: Invariant = {
  name: "memory-as-new-as-files",
  promise: "A running instance remembers everything that its files do: old memory never runs on newer files.",
  witnessed(_scene, fact) {
    if (fact.type !== "resumed" && fact.type !== "behind") return null;
    const { sandboxId, memory, disk } = fact;
    if (memory === disk) return null;
    return `${short(sandboxId)} remembers ${memory} steps, and its files know of ${disk}`;
  },
};

/** Returns the checkpoint that a wake of the sandbox would restore, or null. */
const keptBy = ({ phase }: SandboxRecord): KeptMemory | null => {
  if (phase.name === "standby") return phase.checkpoint;
  return phase.name === "waking" && !phase.consumed ? phase.checkpoint : null;
};

function withoutMemory({ host, history }: Scene, record: SandboxRecord): string | null {
  const kept = keptBy(record);
  if (kept === null || history.sleep.harmed.has(kept.id)) return null;
  const stored = host.directories.get(record.id)?.checkpoints.get(kept.id);
  if (stored?.state === "whole") return null;
  const what = stored === undefined ? "has no checkpoint" : `has a checkpoint that is ${stored.state}`;
  return `${short(record.id)} is ${record.phase.name} and ${what}`;
}

const standbyIsWhole: Invariant = {
  name: "standby-is-whole",
  promise: "In standby, memory is complete on disk and nothing runs; the checkpoint stays until it is spent.",
  standing(scene) {
    for (const record of scene.mirror.readable()) {
      const wrong = withoutMemory(scene, record);
      if (wrong !== null) return wrong;
    }
    return null;
  },
  witnessed(scene, fact) {
    if (fact.type === "harmed") scene.history.sleep.harmed.add(fact.id);
    if (fact.type === "stored" && fact.change.kind === "sandbox.update")
      return withoutMemory(scene, fact.change.record);
    if (fact.type !== "reported-sandbox" || fact.sandbox.status !== "standby") return null;
    const id = fact.sandbox.id as SandboxId;
    return scene.host.instanceOf(id) === null ? null : `${short(id)} is reported as standby, but runs`;
  },
};

const pausedIsFrozen: Invariant = {
  name: "paused-is-frozen",
  promise: "A pause is answered when nothing in the sandbox runs.",
  witnessed({ host, openCalls }, fact) {
    if (fact.type !== "paused" || fact.sandbox.status !== "paused") return null;
    // If another caller has asked to resume the sandbox, the sandbox may run again already, so nothing is checked.
    if ([...openCalls].some(({ what }) => what.startsWith("resume"))) return null;
    const instance = host.instanceOf(fact.sandbox.id as SandboxId);
    return instance === null || instance.holds.size > 0
      ? null
      : `${short(fact.sandbox.id)} is paused and runs`;
  },
};

/** Phases of a sandbox whose memory still exists. */
const WITH_MEMORY: ReadonlySet<string> = new Set(["running", "paused", "suspending", "standby", "waking"]);

/** Returns whether a command is running, or will continue when its sandbox is woken. */
function isThere({ host, history, mirror }: Scene, exec: ExecRecord): boolean {
  const { sandboxId } = exec;
  const id = otherName(mirror, sandboxId, exec.id);
  const record = mirror.sandboxes.get(sandboxId);
  // A fork that is not launched yet will start with the commands of its checkpoint. Their ids in the keeper differ from
  // the recorded ids.
  if (record?.phase.name === "queued" && record.restarts === null && record.forkedFrom !== null)
    return !mirror.unreadable.has(sandboxId) && id !== exec.id;
  if (record === undefined || !WITH_MEMORY.has(record.phase.name)) return false;
  // The engine can't continue a command whose sandbox has an unreadable record.
  if (mirror.unreadable.has(sandboxId)) return false;
  const instance = host.instanceOf(sandboxId);
  const isAlive = instance?.generation === record.generation && !instance.isHalf;
  if (isAlive && instance.keeper.execs.get(id)?.state === "running") return true;
  const kept = keptBy(record);
  if (kept === null || history.sleep.harmed.has(kept.id)) return false;
  const stored = host.directories.get(sandboxId)?.checkpoints.get(kept.id);
  return stored?.memory.execs.some((each) => each.order.id === id && each.state === "running") ?? false;
}

const lostMeansLost: Invariant = {
  name: "lost-means-lost",
  promise: "A command is reported as lost only when it does not continue, in memory or in a checkpoint.",
  witnessed(scene, fact) {
    if (fact.type !== "stored" || fact.change.kind !== "exec.end") return null;
    const { record } = fact.change;
    if (record.status !== "lost" || !isThere(scene, record)) return null;
    return `${record.id} is reported as lost, but continues: ${record.cause?.message ?? "no cause"}`;
  },
};

/** Promises about pause, standby and wake. */
export const SLEEP_INVARIANTS: readonly Invariant[] = [
  wokenOnce,
  memoryAsNewAsFiles,
  standbyIsWhole,
  pausedIsFrozen,
  lostMeansLost,
];
