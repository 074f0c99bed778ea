import type { SandboxId } from "@holdfast/contract";
import type { SandboxRecord } from "@holdfast/engine";
import type { Invariant } from "./invariant.ts";

import { first, short } from "./wording.ts";

const oneInstance: Invariant = {
  name: "one-instance",
  promise: "A sandbox has at most one living instance.",
  standing({ host }) {
    const seen = new Set<SandboxId>();
    return first(host.instances, ({ sandboxId }) => {
      if (seen.has(sandboxId)) return `sandbox ${short(sandboxId)} has two living instances`;
      seen.add(sandboxId);
      return null;
    });
  },
};

function withoutLease(record: SandboxRecord | undefined, generation: number): string | null {
  if (record === undefined) return "runs and no record knows of it";
  const { lease } = record;
  if (lease.state === "none") return `runs without a lease, in phase ${record.phase.name}`;
  if ("generation" in lease && lease.generation !== generation)
    return `runs in generation ${generation} under a lease of generation ${lease.generation}`;
  return null;
}

const leased: Invariant = {
  name: "leased",
  promise: "Every running instance is owned by a lease that was stored before it was started.",
  standing({ host, mirror, history }) {
    return first(host.instances, ({ sandboxId, generation }) => {
      if (history.strays.has(sandboxId)) return null;
      const wrong = withoutLease(mirror.sandboxes.get(sandboxId), generation);
      return wrong === null ? null : `sandbox ${short(sandboxId)} ${wrong}`;
    });
  },
  witnessed({ mirror, history }, fact) {
    if (fact.type !== "spawned" || history.strays.has(fact.sandboxId)) return null;
    const wrong = withoutLease(mirror.sandboxes.get(fact.sandboxId), fact.generation);
    return wrong === null ? null : `when it was started, sandbox ${short(fact.sandboxId)} ${wrong}`;
  },
};

/** Codes of the causes with which a sandbox's record says that the instance no longer exists. */
const GONE: ReadonlySet<string> = new Set(["keeper_died", "host_rebooted"]);

const goneMeansGone: Invariant = {
  name: "gone-means-gone",
  promise: "An instance is reported as gone only when it is: a failed observation does not mean absence.",
  witnessed({ host }, fact) {
    if (fact.type !== "stored" || fact.change.kind !== "sandbox.update") return null;
    const { id, phase, generation } = fact.change.record;
    const cause = phase.name === "failed" ? phase.cause : phase.name === "queued" ? phase.restart : undefined;
    if (cause === undefined || !GONE.has(cause.code)) return null;
    return host.instanceOf(id)?.generation === generation
      ? `${short(id)} is reported as gone, but runs`
      : null;
  },
};

const owned: Invariant = {
  name: "owned",
  promise: "Everything on disk is owned by a record; a record is gone only when nothing is left.",
  standing({ host, mirror, history }) {
    return first(host.directories.keys(), (id) => {
      if (history.strays.has(id)) return null;
      const record = mirror.sandboxes.get(id);
      if (record !== undefined && record.phase.name !== "gone") return null;
      return `the directory of ${short(id)} is owned by ${record === undefined ? "no record" : "one that is gone"}`;
    });
  },
};

const terminatedMeansAbsent: Invariant = {
  name: "terminated-means-absent",
  promise: "A sandbox is reported as terminated only when nothing of it is left.",
  witnessed({ host }, fact) {
    if (fact.type !== "reported-sandbox" || fact.sandbox.status !== "terminated") return null;
    const id = fact.sandbox.id as SandboxId;
    if (host.instanceOf(id) !== null) return `${short(id)} was reported as terminated, but runs`;
    return host.directories.has(id) ? `${short(id)} was reported as terminated, but has files` : null;
  },
};

export const INSTANCE_INVARIANTS: readonly Invariant[] = [
  oneInstance,
  leased,
  goneMeansGone,
  owned,
  terminatedMeansAbsent,
];
