import {
  type CheckpointId,
  COUNTERS,
  type DriveId,
  type ExecId,
  HoldfastError,
  type Numbers,
  type ProcessId,
  type Sandbox,
  type SandboxId,
} from "@holdfast/contract";
import type { Invariant, Scene } from "./invariant.ts";

import { first, short, text } from "./wording.ts";

/**
 * Maximum time until the engine notices a change: one pass over all sandboxes, two observations with their deadlines,
 * and some extra time.
 */
const noticedWithin = ({ observeEveryMs }: Numbers): number => observeEveryMs * 5 + 2_000;

function unprovenReady({ host, time, numbers }: Scene, sandbox: Sandbox): string | null {
  const { proof, generation, lease } = sandbox;
  const what = `${short(sandbox.id)} is reported as ready`;
  if (!proof?.ok || proof.generation !== generation) return `${what} without a proof of its generation`;
  if (lease.state !== "held") return `${what} with a lease that is ${lease.state}`;
  const instance = host.instanceOf(sandbox.id as SandboxId);
  const since = instance === null ? host.absentSince(sandbox.id as SandboxId) : instance.brokenSince;
  if (instance === null ? since === null : instance.provenAt === null) return `${what} and never ran a proof`;
  if (since === null || time.elapsed - since <= noticedWithin(numbers)) return null;
  return `${what} though it has not served for ${time.elapsed - since} ms`;
}

const readyMeansProven: Invariant = {
  name: "ready-means-proven",
  promise:
    "A sandbox is reported as ready only with a valid proof, and for no more than seconds after it stops serving.",
  witnessed(scene, fact) {
    if (fact.type !== "reported-sandbox" || fact.sandbox.status !== "ready") return null;
    return unprovenReady(scene, fact.sandbox);
  },
};

const answered: Invariant = {
  name: "answered",
  promise: "Every call is answered within its bound, with a result or a typed error.",
  standing({ openCalls, time }) {
    return first(openCalls, ({ what, since, boundMs }) =>
      time.elapsed - since > boundMs ? `"${what}" has waited for ${time.elapsed - since} ms` : null,
    );
  },
  witnessed({ history }, fact) {
    if (fact.type !== "refused") return null;
    const { error, call } = fact;
    if (!(error instanceof HoldfastError))
      return `"${call}" was refused with ${error instanceof Error ? error.stack : text(error)}`;
    if (error.code === "internal" && !history.oursHasFailed)
      return `"${call}" was refused as internal: ${error.message}: ${String(error.cause)}`;
    return null;
  },
};

const nothingUnhandled: Invariant = {
  name: "nothing-unhandled",
  promise: "No rejection is unhandled: a server would end itself.",
  witnessed(_scene, fact) {
    if (fact.type !== "unhandled") return null;
    return fact.error instanceof Error ? (fact.error.stack ?? fact.error.message) : text(fact.error);
  },
};

const nothingSpins: Invariant = {
  name: "nothing-spins",
  promise: "No loop runs without waiting for something.",
  witnessed: (_scene, fact) =>
    fact.type === "spun" ? "the engine asks without end while time stands still" : null,
};

const keysKept: Invariant = {
  name: "keys-kept",
  promise: "An idempotency key belongs to one sandbox.",
  witnessed({ history, time, numbers }, fact) {
    if (fact.type === "stored" && fact.change.kind === "sandbox.insert")
      history.insertedAt.set(fact.change.record.id, time.now());
    // After the record of an idempotency key was removed, the key stays unknown, even if the time of day is set back to
    // before the key's expiry.
    if (fact.type === "stored" && fact.change.kind === "prune")
      for (const [key, { at }] of history.madeUnderKey)
        if (at < fact.change.keysBefore) history.madeUnderKey.delete(key);
    if (fact.type !== "created" || fact.key === null) return null;
    const before = history.madeUnderKey.get(fact.key);
    // An idempotency key is kept for a limited time, measured from when its sandbox was first stored. After that time
    // the key may be unknown.
    const isOld = before !== undefined && time.now() - before.at >= numbers.keyRetentionMs;
    const made = isOld ? undefined : before;
    const at = history.insertedAt.get(fact.sandbox.id as SandboxId) ?? time.now();
    if (!fact.existed) history.madeUnderKey.set(fact.key, { ...fact, at });
    // The caller may have received an existing sandbox that has the requested name. If another request created that
    // sandbox, the idempotency key does not belong to it.
    const isOther = fact.existed && made?.request !== fact.request;
    if (made === undefined || isOther || made.sandbox.id === fact.sandbox.id) return null;
    return `${fact.key} made ${short(made.sandbox.id)}, then gave ${short(fact.sandbox.id)}`;
  },
};

/** Phases that a sandbox reaches only after a successful proof. */
const PROVEN: ReadonlySet<string> = new Set(["running", "paused", "suspending", "standby", "waking"]);

const namesKept: Invariant = {
  name: "names-kept",
  promise: "A name belongs to one live sandbox, and to none that is gone or was never ready.",
  standing({ mirror, history }) {
    const holders = new Map<string, SandboxId>();
    return first(mirror.sandboxes.values(), ({ id, name, nameHeld, phase }) => {
      if (PROVEN.has(phase.name)) history.provenOnce.add(id);
      if (!nameHeld) return null;
      const other = holders.get(name);
      if (other !== undefined) return `${name} belongs to ${short(id)} and ${short(other)}`;
      holders.set(name, id);
      if (phase.name === "gone") return `${name} belongs to ${short(id)}, which is gone`;
      if (phase.name === "failed" && !history.provenOnce.has(id))
        return `${name} belongs to ${short(id)}, whose launch failed`;
      return null;
    });
  },
};

const createdIsReady: Invariant = {
  name: "created-is-ready",
  promise: "A create is answered with a stored sandbox that, if the caller waited for it, is ready.",
  witnessed({ mirror }, fact) {
    if (fact.type !== "created") return null;
    const { id, status } = fact.sandbox;
    if (!mirror.sandboxes.has(id as SandboxId)) return `${short(id)} was answered and is not stored`;
    return fact.waited && status !== "ready" ? `${short(id)} was waited for and is ${status}` : null;
  },
};

const countersExact: Invariant = {
  name: "counters-exact",
  promise: "Totals are exact: everything is counted once, in the commit that stores it.",
  stored({ mirror, database }) {
    const rows = database.ask("SELECT name, value FROM counters");
    const stored = new Map(rows.map(({ name, value }) => [name, value]));
    return first(COUNTERS, (name) =>
      stored.get(name) === mirror.counts[name]
        ? null
        : `${name} is ${stored.get(name)}, and ${mirror.counts[name]} were seen`,
    );
  },
};

const storedAsReported: Invariant = {
  name: "stored-as-reported",
  promise: "The database contains exactly what it confirmed.",
  stored({ mirror, database }) {
    const rows = database.ask("SELECT id, phase, revision FROM sandboxes");
    const execs = database.ask("SELECT id, status FROM execs");
    const saved = database.ask("SELECT id FROM checkpoints");
    if (rows.length !== mirror.sandboxes.size) return `there are ${rows.length} sandboxes`;
    if (execs.length !== mirror.execs.size) return `there are ${execs.length} execs`;
    if (saved.length !== mirror.checkpoints.size) return `there are ${saved.length} checkpoints`;
    if (saved.some(({ id }) => !mirror.checkpoints.has(id as CheckpointId))) return "a checkpoint is another";
    const drives = database.ask("SELECT id, phase, revision FROM drives");
    if (drives.length !== mirror.drives.size) return `there are ${drives.length} drives`;
    const processes = database.ask("SELECT id, revision FROM processes");
    if (processes.length !== mirror.processes.size) return `there are ${processes.length} processes`;
    const wrongProcess = first(processes, ({ id, revision }) =>
      mirror.processes.get(id as ProcessId)?.revision === revision ? null : `${id} is another`,
    );
    const wrongDrive = first(drives, ({ id, phase, revision }) => {
      const record = mirror.drives.get(id as DriveId);
      return record?.phase === phase && record?.revision === revision ? null : `${id} is ${phase}`;
    });
    const wrongSandbox = first(rows, ({ id, phase, revision }) => {
      const record = mirror.sandboxes.get(id as SandboxId);
      return record?.phase.name === phase && record?.revision === revision ? null : `${id} is ${phase}`;
    });
    const wrongExec = first(execs, ({ id, status }) =>
      mirror.execs.get(id as ExecId)?.status === status ? null : `${id} is ${status}`,
    );
    return wrongSandbox ?? wrongExec ?? wrongProcess ?? wrongDrive;
  },
};

export const ANSWER_INVARIANTS: readonly Invariant[] = [
  readyMeansProven,
  answered,
  nothingUnhandled,
  nothingSpins,
  keysKept,
  namesKept,
  createdIsReady,
  countersExact,
  storedAsReported,
];
