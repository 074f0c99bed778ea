import type { CheckpointId, SandboxId } from "@holdfast/contract";
import type { ExecRecord, KeptMemory, SandboxRecord } from "@holdfast/engine";
import type { SimulatedInstance } from "./host.ts";
import type { Invariant, Scene } from "./invariants.ts";
import { otherName } from "./names.ts";

/** What has become of checkpoints, which the disk no longer shows. */
export class SleepHistory {
  /** Memory that has run on since it was written, or since it came back: by the process that it ran in. */
  readonly #ranIn = new Map<CheckpointId, number>();
  /** Those that were harmed by somebody else: that they can't be used is nobody's fault. */
  readonly harmed = new Set<CheckpointId>();

  /** The process that has the memory of a checkpoint before this one; null where there was none. */
  goesOn({ pid, origin, dumps }: SimulatedInstance): number | null {
    const before = origin === null ? undefined : this.#ranIn.get(origin);
    for (const id of [...(origin === null ? [] : [origin]), ...dumps])
      if (!this.#ranIn.has(id)) this.#ranIn.set(id, pid);
    return before === undefined || before === pid ? null : before;
  }
}

const short = (id: string): string => id.slice(-3);

const wokenOnce: Invariant = {
  name: "woken-once",
  promise: "A checkpoint becomes a running instance at most once, and only when it is stored as spent.",
  witnessed({ history, mirror }, fact) {
    if (fact.type !== "goes-on") return null;
    const { instance, sandboxId } = fact;
    const what = `an instance of ${short(sandboxId)}`;
    const before = history.sleep.goesOn(instance);
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
  promise: "Whatever runs remembers all that its files do: old memory is never put on newer files.",
  witnessed(_scene, fact) {
    if (fact.type !== "goes-on" && fact.type !== "behind") return null;
    const { sandboxId, memory, disk } = fact;
    if (memory === disk) return null;
    return `${short(sandboxId)} remembers ${memory} steps, and its files know of ${disk}`;
  },
};

/** The checkpoint that a sandbox would be woken from. */
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
  promise: "In standby memory is on disk, whole, and nothing runs; the checkpoint stays until it is spent.",
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
    if (fact.type !== "told-sandbox" || fact.sandbox.status !== "standby") return null;
    const id = fact.sandbox.id as SandboxId;
    return scene.host.instanceOf(id) === null ? null : `${short(id)} is called standby and runs`;
  },
};

const pausedIsFrozen: Invariant = {
  name: "paused-is-frozen",
  promise: "A pause is answered when nothing in the sandbox goes on.",
  witnessed({ host, openCalls }, fact) {
    if (fact.type !== "paused" || fact.sandbox.status !== "paused") return null;
    // Somebody else may have resumed it meanwhile.
    if ([...openCalls].some(({ what }) => what.startsWith("resume"))) return null;
    const instance = host.instanceOf(fact.sandbox.id as SandboxId);
    return instance === null || instance.holds.size > 0
      ? null
      : `${short(fact.sandbox.id)} is paused and runs`;
  },
};

/** Phases of a sandbox whose memory is not given up. */
const WITH_MEMORY: ReadonlySet<string> = new Set(["running", "paused", "suspending", "standby", "waking"]);

/** Whether a command goes on, or will when its sandbox is woken. */
function isThere({ host, history, mirror }: Scene, exec: ExecRecord): boolean {
  const { sandboxId } = exec;
  const id = otherName(mirror, sandboxId, exec.id);
  const record = mirror.sandboxes.get(sandboxId);
  // A fork that is still to be launched, for the first time or again, begins with it.
  if (record?.phase.name === "queued" && record.restarts === null && record.forkedFrom !== null)
    return !mirror.unreadable.has(sandboxId) && id !== exec.id;
  if (record === undefined || !WITH_MEMORY.has(record.phase.name)) return false;
  // Nobody can know what a record says that can't be read.
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
  promise: "A command is called lost only when it doesn't go on, in memory or in a checkpoint.",
  witnessed(scene, fact) {
    if (fact.type !== "stored" || fact.change.kind !== "exec.end") return null;
    const { record } = fact.change;
    if (record.status !== "lost" || !isThere(scene, record)) return null;
    return `${record.id} is called lost, and goes on: ${record.cause?.message ?? "no cause"}`;
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
