import type { SandboxId } from "@holdfast/contract";
import type { CheckpointSummary, ExecRecord, KeeperExec } from "@holdfast/engine";
import type { Invariant, Scene } from "./invariants.ts";
import { otherName, processOf } from "./names.ts";

const short = (id: string): string => id.slice(-3);

/** Whether somebody has asked for the end of a checkpoint, by its id or its name: from then on its files may be gone. */
const isUnwanted = ({ history }: Scene, { id, name }: CheckpointSummary): boolean =>
  history.unwanted.has(id) || history.unwanted.has(name);

function withoutFiles(scene: Scene, saved: CheckpointSummary): string | null {
  const { host, history, mirror } = scene;
  const { id, sandboxId } = saved;
  if (history.sleep.harmed.has(id) || isUnwanted(scene, saved)) return null;
  // Files go before their record does.
  if (mirror.sandboxes.get(sandboxId)?.phase.name === "deleting" || mirror.unreadable.has(sandboxId))
    return null;
  const stored = host.directories.get(sandboxId)?.saved.get(id);
  if (stored?.state === "whole") return null;
  return `checkpoint ${short(id)} of ${short(sandboxId)} is kept by its record and ${stored?.state ?? "not there"}`;
}

const keptIsWhole: Invariant = {
  name: "kept-is-whole",
  promise: "A checkpoint that is on record is on disk, whole, until somebody removes it or its sandbox.",
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
  promise: "A sandbox that has not served is launched on no files but those that its launch makes or copies.",
  witnessed: (_scene, fact) =>
    fact.type === "begun-on-files"
      ? `${short(fact.sandboxId)} is launched on files of an earlier launch`
      : null,
};

/** The execs that a fork began with, as far as they are on record. */
const begunWith = ({ mirror }: Scene, sandboxId: SandboxId): ExecRecord[] =>
  (mirror.sandboxes.get(sandboxId)?.forkedFrom?.execs ?? []).flatMap(({ id }) => mirror.execs.get(id) ?? []);

/** How one had ended, unheard of, when the checkpoint was taken that it is forked from. */
function endIn({ host, mirror }: Scene, { sandboxId, id }: ExecRecord): KeeperExec | null {
  const origin = mirror.sandboxes.get(sandboxId)?.forkedFrom;
  if (origin == null) return null;
  const stored = host.directories.get(origin.sandboxId)?.saved.get(origin.checkpointId);
  return stored?.journals.get(otherName(mirror, sandboxId, id))?.exit ?? null;
}

const forkGoesOn: Invariant = {
  name: "fork-goes-on",
  promise: "A fork goes on with what was under way there, under names of its own, and with nothing else.",
  witnessed(scene, fact) {
    if (fact.type === "stored" && fact.change.kind === "exec.insert") {
      const { record } = fact.change;
      if (begunWith(scene, record.sandboxId).some(({ id }) => id === record.id))
        scene.history.goesOn(record, endIn(scene, record));
    }
    if (fact.type !== "forked") return null;
    const { mirror, history } = scene;
    const { sandboxId, instance } = fact;
    const own = new Map(begunWith(scene, sandboxId).map((record) => [record.id, record]));
    for (const exec of instance.keeper.list()) {
      const id = otherName(mirror, sandboxId, exec.id);
      const record = own.get(id);
      // A run that was not on record yet is put there when the fork is linked.
      const isRun = processOf(mirror, sandboxId, exec.id) !== undefined;
      if (record === undefined && exec.state === "running" && !exec.id.startsWith("proof-") && !isRun)
        return `${exec.id} goes on in ${short(sandboxId)}, which has no name for it`;
      if (record === undefined) continue;
      if (record.endedAt !== null) return `${id} goes on again after it was called ${record.status}`;
      history.goesOn(record, exec.state === "running" ? null : exec);
      own.delete(id);
    }
    for (const record of own.values())
      if (record.endedAt === null)
        return `${record.id} should go on in ${short(sandboxId)}, and is not there`;
    return null;
  },
};

const namesApart: Invariant = {
  name: "names-apart",
  promise:
    "What happens to a command in a fork is never told of the one that it was copied from, nor the other way round.",
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

/** Promises about checkpoints that are kept, and about forks. */
export const FORK_INVARIANTS: readonly Invariant[] = [keptIsWhole, begunOnNothing, forkGoesOn, namesApart];
