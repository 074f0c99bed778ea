import type { SandboxId } from "@holdfast/contract";
import type { CheckpointSummary, ExecRecord, KeeperExec } from "@holdfast/engine";
import { otherName, processOf } from "./exec-ids.ts";
import type { Invariant, Scene } from "./invariant.ts";

const short = (id: string): string => id.slice(-3);

/**
 * Returns whether a caller asked to delete a checkpoint, by its id or name. After such a request the checkpoint's files
 * may be missing.
 */
const isUnwanted = ({ history }: Scene, { id, name }: CheckpointSummary): boolean =>
  history.unwanted.has(id) || history.unwanted.has(name);

function withoutFiles(scene: Scene, saved: CheckpointSummary): string | null {
  const { host, history, mirror } = scene;
  const { id, sandboxId } = saved;
  if (history.sleep.harmed.has(id) || isUnwanted(scene, saved)) return null;
  // While a sandbox is being deleted, its files are removed before the records that refer to them.
  if (mirror.sandboxes.get(sandboxId)?.phase.name === "deleting" || mirror.unreadable.has(sandboxId))
    return null;
  const stored = host.directories.get(sandboxId)?.saved.get(id);
  if (stored?.state === "whole") return null;
  return `checkpoint ${short(id)} of ${short(sandboxId)} is saved on record, but ${stored?.state ?? "not there"}`;
}

const keptIsWhole: Invariant = {
  name: "kept-is-whole",
  promise: "A saved checkpoint on record is complete on disk, until a caller removes it or its sandbox.",
  standing(scene) {
    for (const saved of scene.mirror.checkpoints.values()) {
      const wrong = withoutFiles(scene, saved);
      if (wrong !== null) return wrong;
    }
    return null;
  },
  witnessed(scene, fact) {
    if (fact.type !== "stored" || fact.change.kind !== "checkpoint.insert") return null;
    return withoutFiles(scene, fact.change.record);
  },
};

const begunOnNothing: Invariant = {
  name: "begun-on-nothing",
  promise: "A sandbox that has not served is launched only on files that its launch creates or copies.",
  witnessed: (_scene, fact) =>
    fact.type === "begun-on-files"
      ? `${short(fact.sandboxId)} is launched on files of an earlier launch`
      : null,
};

/** Returns the recorded execs that were already running when the fork was created. */
const begunWith = ({ mirror }: Scene, sandboxId: SandboxId): ExecRecord[] =>
  (mirror.sandboxes.get(sandboxId)?.forkedFrom?.execs ?? []).flatMap(({ id }) => mirror.execs.get(id) ?? []);

/**
 * Returns how an exec ended, according to its journal in the forked checkpoint; null if it had not ended. An exec may
 * have ended before that checkpoint was taken, without its end being recorded yet.
 */
function endIn({ host, mirror }: Scene, { sandboxId, id }: ExecRecord): KeeperExec | null {
  const origin = mirror.sandboxes.get(sandboxId)?.forkedFrom;
  if (origin == null) return null;
  const stored = host.directories.get(origin.sandboxId)?.saved.get(origin.checkpointId);
  return stored?.journals.get(otherName(mirror, sandboxId, id))?.exit ?? null;
}

const forkGoesOn: Invariant = {
  name: "fork-goes-on",
  promise: "A fork continues the commands of its checkpoint, under its own ids, and nothing else.",
  witnessed(scene, fact) {
    if (fact.type === "stored" && fact.change.kind === "exec.insert") {
      const { record } = fact.change;
      if (begunWith(scene, record.sandboxId).some(({ id }) => id === record.id))
        scene.history.continues(record, endIn(scene, record));
    }
    if (fact.type !== "forked") return null;
    const { mirror, history } = scene;
    const { sandboxId, instance } = fact;
    const own = new Map(begunWith(scene, sandboxId).map((record) => [record.id, record]));
    for (const exec of instance.keeper.list()) {
      const id = otherName(mirror, sandboxId, exec.id);
      const record = own.get(id);
      // A run of a process may have no record yet. It gets one when the server first connects to the fork.
      const isRun = processOf(mirror, sandboxId, exec.id) !== undefined;
      if (record === undefined && exec.state === "running" && !exec.id.startsWith("proof-") && !isRun)
        return `${exec.id} runs in ${short(sandboxId)}, which has no record of it`;
      if (record === undefined) continue;
      if (record.endedAt !== null) return `${id} continues after it was reported as ${record.status}`;
      history.continues(record, exec.state === "running" ? null : exec);
      own.delete(id);
    }
    for (const record of own.values())
      if (record.endedAt === null)
        return `${record.id} should continue in ${short(sandboxId)}, but is missing`;
    return null;
  },
};

const namesApart: Invariant = {
  name: "names-apart",
  promise:
    "An outcome of a command in a fork is never reported for the command it was copied from, nor the reverse.",
  witnessed({ mirror }, fact) {
    if (fact.type !== "command-ended" && fact.type !== "command") return null;
    const { sandboxId } = fact;
    const inside = fact.type === "command" ? fact.id : fact.exec.id;
    if (inside.startsWith("proof-") || mirror.sandboxes.get(sandboxId)?.forkedFrom == null) return null;
    const record = mirror.execs.get(otherName(mirror, sandboxId, inside));
    if (record === undefined || record.sandboxId === sandboxId) return null;
    return `${inside} runs in ${short(sandboxId)} under the name of an exec of ${short(record.sandboxId)}`;
  },
};

/** Promises about saved checkpoints and forks. */
export const FORK_INVARIANTS: readonly Invariant[] = [keptIsWhole, begunOnNothing, forkGoesOn, namesApart];
