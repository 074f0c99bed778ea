import {
  type CheckpointId,
  COUNTERS,
  type DriveId,
  type Exec,
  type ExecId,
  HoldfastError,
  isTerminal,
  type Numbers,
  type ProcessId,
  type Sandbox,
  type SandboxId,
} from "@holdfast/contract";
import type { ExecRecord, SandboxRecord } from "@holdfast/engine";
import type { Mirror } from "../world/mirror.ts";
import { DRIVE_INVARIANTS } from "./drive-invariants.ts";
import { journalOf, otherName, runIn } from "./exec-ids.ts";
import { FORK_INVARIANTS } from "./fork-invariants.ts";
import { HEAL_INVARIANTS } from "./heal-invariants.ts";
import type { History } from "./history.ts";
import type { Invariant, Scene } from "./invariant.ts";
import { PROCESS_INVARIANTS } from "./process-invariants.ts";
import { SLEEP_INVARIANTS } from "./sleep-invariants.ts";

/** Returns the first problem that `wrong` finds among the items, or null. */
function first<Item>(items: Iterable<Item>, wrong: (item: Item) => string | null): string | null {
  for (const item of items) {
    const found = wrong(item);
    if (found !== null) return found;
  }
  return null;
}

const short = (id: string): string => id.slice(-3);

// ── Instances and files on disk ──────────────────────────────────────────────────────────────────────────────────

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

// ── Execs ────────────────────────────────────────────────────────────────────────────────────────────────────────

const ranOnce: Invariant = {
  name: "ran-once",
  promise: "A command runs at most once, and never without an open record.",
  witnessed({ mirror, history }, fact) {
    // Runs that keepers start without a request, the next runs of supervised processes, are not checked by this
    // invariant. Other invariants check them.
    if (fact.type !== "command" || fact.isProof || fact.why === "next") return null;
    const id = otherName(mirror, fact.sandboxId, fact.id);
    const record = mirror.execs.get(id);
    if (record === undefined) return `${id} runs and no record knows of it`;
    if (record.endedAt !== null) return `${id} runs after it was reported as ${record.status}`;
    return history.ran(record) > 1 ? `${id} ran twice` : null;
  },
};

const endOf = ({ status, exitCode, signal }: Pick<Exec, "status" | "exitCode" | "signal">) => ({
  status,
  exitCode,
  signal,
});
const text = (value: unknown): string => JSON.stringify(value);

const oneOutcome: Invariant = {
  name: "one-outcome",
  promise: "An exec has one outcome, and every caller gets the same.",
  witnessed({ history, mirror, time }, fact) {
    if (fact.type === "reported-exec") {
      const life = { id: fact.exec.id as ExecId, createdAt: Date.parse(fact.exec.createdAt) };
      const reported = endOf(fact.exec);
      if (!isTerminal(reported.status))
        return history.reportedAt(life) >= fact.askedAt
          ? null
          : `${life.id} is reported as ${reported.status} after its end`;
      const before = history.firstReported(life, reported, time.elapsed);
      if (text(reported) !== text(before))
        return `${life.id} ended as ${text(before)} and as ${text(reported)}`;
      const stored = mirror.execs.get(life.id);
      if (stored?.createdAt === life.createdAt && stored.endedAt === null)
        return `${life.id} was reported as ended, but its end is not stored`;
    }
    if (fact.type === "stored" && fact.change.kind === "exec.end") {
      const { record } = fact.change;
      const before = history.firstReported(record, endOf(record), time.elapsed);
      if (text(before) !== text(endOf(record)))
        return `${record.id} ended as ${text(before)} and as ${text(endOf(record))}`;
    }
    return null;
  },
};

/**
 * Returns whether it is unknown by which id the keeper knows an exec. That is so if only the fork's record contains the
 * id, and that record is unreadable.
 */
const isNameless = ({ mirror }: Scene, { sandboxId, id }: ExecRecord): boolean =>
  mirror.unreadable.has(sandboxId) && otherName(mirror, sandboxId, id) !== id;

function untrue(scene: Scene, record: ExecRecord): string | null {
  const { history } = scene;
  const run = history.runOf(record);
  const { id, status, dispatched } = record;
  if (dispatched === "no" && run !== undefined) return `${id} ran, but was reported as never dispatched`;
  const end = run?.end ?? null;
  const wasSeen = status === "exited" || status === "timed_out";
  // If the keeper does not enforce a timeout, the engine cancels the exec at its timeout. Then the record says
  // `timed_out` and the keeper says `cancelled`, and both are right.
  const isBackstop = status === "timed_out" && end?.state === "cancelled" && record.spec.timeoutMs !== null;
  if (wasSeen && end?.state !== status && !isBackstop) return `${id} was reported as ${status}, but was not`;
  if (status === "exited" && end !== null && end.signal === 0 && end.exitCode !== record.exitCode)
    return `${id} exited with ${end.exitCode}, but was reported with ${record.exitCode}`;
  const exit = journalOf(scene, record)?.exit ?? null;
  const isUnseen = status === "lost" || (status === "cancelled" && exit?.state !== "cancelled");
  if (isUnseen && exit !== null && !history.unread.has(id) && !isNameless(scene, record))
    return `${id} was reported as ${status}, but its journal says ${exit.state}`;
  return null;
}

const trueOutcome: Invariant = {
  name: "true-outcome",
  promise: "An outcome is what happened: no exit is invented, and no exit on disk is reported as lost.",
  witnessed(scene, fact) {
    if (fact.type === "journal-unread")
      scene.history.unread.add(otherName(scene.mirror, fact.sandboxId, fact.id));
    if (fact.type === "command-ended") {
      const record = scene.mirror.execs.get(otherName(scene.mirror, fact.sandboxId, fact.exec.id));
      if (record?.sandboxId === fact.sandboxId) scene.history.reallyEnded(record, fact.exec);
    }
    if (fact.type !== "stored" || fact.change.kind !== "exec.end") return null;
    return untrue(scene, fact.change.record);
  },
};

const trueOutput: Invariant = {
  name: "true-output",
  promise: "Output is what the command printed, in order; missing output is reported as such.",
  witnessed(scene, fact) {
    if (fact.type !== "reported-exec" || fact.exec.stdout === undefined) return null;
    const { exec } = fact;
    const journal = journalOf(scene, exec);
    if (journal === undefined || journal.torn) return null;
    const reported = exec.stdout ?? "";
    if (!journal.text.startsWith(reported))
      return `${exec.id} printed ${text(journal.text)}, reported as ${text(reported)}`;
    if (isTerminal(exec.status) && !exec.truncated && reported !== journal.text)
      return `${exec.id} was reported as complete with ${text(reported)}, but printed ${text(journal.text)}`;
    return null;
  },
};

const times = (whole: string, part: string): number => whole.split(part).length - 1;

const stdinOnce: Invariant = {
  name: "stdin-once",
  promise: "Input arrives at most once, and exactly once if that was confirmed to the caller.",
  standing({ host }) {
    return first(host.instances, ({ keeper }) =>
      first(keeper.execs.values(), ({ order, stdin }) => {
        const pieces = stdin.match(/<\d+>/g) ?? [];
        return new Set(pieces).size === pieces.length ? null : `stdin of ${order.id} is ${text(stdin)}`;
      }),
    );
  },
  witnessed({ host, mirror }, fact) {
    if (fact.type !== "typed") return null;
    const record = mirror.execs.get(fact.id);
    const inside = record && otherName(mirror, record.sandboxId, fact.id);
    const exec = inside && host.instanceOf(record.sandboxId)?.keeper.execs.get(inside);
    // An exec that has ended accepts all input and reads none of it, so there is nothing to compare.
    if (exec?.state !== "running" || exec.stdinOver || times(exec.stdin, fact.text) === 1) return null;
    return `${fact.text} was accepted, and stdin of ${fact.id} is ${text(exec.stdin)}`;
  },
};

const endedForAReason: Invariant = {
  name: "ended-for-a-reason",
  promise: "A command is ended only on request, or after it has lived longer than its timeout.",
  witnessed({ history, mirror }, fact) {
    if (fact.type === "unwanted") history.unwanted.add(fact.id);
    if (fact.type !== "cancelled") return null;
    const id = otherName(mirror, fact.sandboxId, fact.id);
    if (history.unwanted.has(id) || isUnwantedRun(history, mirror, fact.sandboxId, id)) return null;
    if (fact.timeoutMs > 0 && fact.livedMs >= fact.timeoutMs) return null;
    return `${id} was ended after ${fact.livedMs} ms, with a timeout of ${fact.timeoutMs} ms`;
  },
};

/** Returns whether the exec is a run of a process that a caller asked to stop or restart. */
function isUnwantedRun(
  { unwanted }: History,
  { processes, sandboxes }: Mirror,
  sandboxId: SandboxId,
  id: ExecId,
): boolean {
  const run = runIn(id);
  const name = run === null ? undefined : processes.get(run.process)?.name;
  return unwanted.has(`${sandboxId}/${name}`) || unwanted.has(`${sandboxes.get(sandboxId)?.name}/${name}`);
}

const keptLongEnough: Invariant = {
  name: "kept-long-enough",
  promise: "Reported objects can be found: an exec for its retention time after its end, a sandbox forever.",
  witnessed({ mirror, time, numbers, history }, fact) {
    if (fact.type === "refused" && fact.ref !== null && fact.error instanceof HoldfastError) {
      const { code } = fact.error;
      if (code === "exec_not_found" && mirror.execs.has(fact.ref as ExecId))
        return `${fact.ref} was not found`;
      if (code === "sandbox_not_found" && mirror.sandboxes.has(fact.ref as SandboxId))
        return `${fact.ref} was not found`;
    }
    if (fact.type !== "forgotten" || history.isThrifty) return null;
    const { id, endedAt } = fact.record;
    const keptMs = time.now() - (endedAt ?? time.now());
    return keptMs < numbers.execRetentionMs ? `${id} was forgotten ${keptMs} ms after its end` : null;
  },
};

/**
 * Maximum time until a shortage or an emergency cleanup causes its last deletion. It is measured from the end of the
 * shortage, or from the request of the cleanup.
 */
const SHORT_MS = 30_000;

const removedForAReason: Invariant = {
  name: "removed-for-a-reason",
  promise:
    "A sandbox is deleted only on request, after its TTL, after its idle TTL with nothing running in it, after the retention of a failure, or, if it was created disposable and nothing runs in it, when the host is short of resources.",
  witnessed({ mirror, history, host, time }, fact) {
    if (fact.type === "emergency") history.emergencyAt = time.elapsed;
    if (fact.type === "stored" && fact.change.kind === "sandbox.update") {
      const { id, phase, spec } = fact.change.record;
      const isNews = phase.name === "deleting" && !history.deleting.has(id);
      if (phase.name === "failed") history.keptUntil.set(id, phase.keptUntil);
      if (!isNews) return null;
      history.deleting.add(id);
      const { name, createdAt, lastActivityAt } = fact.change.record;
      const { ttlMs, idleTtlMs, disposable } = spec.lifecycle;
      const now = time.now();
      const isShort = time.elapsed - Math.max(host.shortAt, history.emergencyAt) < SHORT_MS;
      const isIdle = mirror.openExecs().every(({ sandboxId }) => sandboxId !== id);
      const isAllowed =
        history.unwanted.has(id) ||
        history.unwanted.has(name) ||
        (ttlMs !== undefined && createdAt + ttlMs <= now) ||
        (idleTtlMs !== undefined && isIdle && lastActivityAt + idleTtlMs <= now) ||
        (history.keptUntil.get(id) ?? Number.POSITIVE_INFINITY) <= now ||
        (disposable === true && isIdle && isShort);
      return isAllowed ? null : `${short(id)} is deleted without a reason`;
    }
    if (fact.type !== "pruned") return null;
    const { id, phase, endedAt } = fact.record;
    const isOld = phase.name === "gone" && endedAt !== null && endedAt < fact.goneBefore;
    return isOld ? null : `the record of ${short(id)} was removed in phase ${phase.name}`;
  },
};

const OVER: ReadonlySet<Sandbox["status"]> = new Set(["stopping", "terminated", "failed"]);

const endsAtItsEnd: Invariant = {
  name: "ends-at-its-end",
  promise: "A sandbox past the end of its TTL is never reported as one that serves or will serve.",
  witnessed({ time }, fact) {
    if (fact.type !== "reported-sandbox") return null;
    const { id, status, expiresAt, lease } = fact.sandbox;
    if (expiresAt === null || Date.parse(expiresAt) > time.now() || OVER.has(status)) return null;
    return lease.state === "quarantined" ? null : `${short(id)} is past its end and ${status}`;
  },
};

const failsForItsOwn: Invariant = {
  name: "fails-for-its-own",
  promise: "A sandbox that has served does not fail because others could not be launched.",
  witnessed({ history }, fact) {
    if (fact.type !== "stored" || fact.change.kind !== "sandbox.update") return null;
    const { id, phase } = fact.change.record;
    if (phase.name !== "failed" || !history.provenOnce.has(id)) return null;
    return phase.cause.code === "launches_suspended" ? `${short(id)} failed: ${phase.cause.message}` : null;
  },
};

const COUNTED: ReadonlySet<string> = new Set([
  "queued",
  "launching",
  "running",
  "paused",
  "suspending",
  "standby",
  "waking",
]);

const limitsKept: Invariant = {
  name: "limits-kept",
  promise: "There are never more sandboxes, or concurrent commands in a sandbox, than the limits allow.",
  standing({ mirror, host, numbers }) {
    const live = mirror.readable().filter(({ phase }) => COUNTED.has(phase.name));
    if (live.length > numbers.maxSandboxes) return `there are ${live.length} sandboxes`;
    for (const [owner, own] of Map.groupBy(live, (record) => record.owner))
      if (owner !== null && own.length > numbers.maxSandboxesPerKey)
        return `${owner} has ${own.length} sandboxes`;
    return first(host.instances, ({ keeper, sandboxId }) => {
      const running = [...keeper.execs.values()].filter(
        // Only first runs count, because a keeper starts the later runs of a supervised process without asking the
        // server.
        ({ state, command, order }) =>
          state === "running" && command.kind !== "prove" && (runIn(order.id)?.run ?? 1) === 1,
      );
      return running.length > numbers.execsPerSandbox
        ? `${running.length} commands run in ${short(sandboxId)}`
        : null;
    });
  },
};

// ── Answers to callers ───────────────────────────────────────────────────────────────────────────────────────────

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

/** All promises. To add one, state it, define its check, and list it here. */
export const INVARIANTS: readonly Invariant[] = [
  oneInstance,
  leased,
  goneMeansGone,
  owned,
  terminatedMeansAbsent,
  ranOnce,
  oneOutcome,
  trueOutcome,
  trueOutput,
  stdinOnce,
  endedForAReason,
  keptLongEnough,
  limitsKept,
  removedForAReason,
  endsAtItsEnd,
  failsForItsOwn,
  readyMeansProven,
  answered,
  nothingUnhandled,
  nothingSpins,
  keysKept,
  namesKept,
  createdIsReady,
  countersExact,
  storedAsReported,
  ...SLEEP_INVARIANTS,
  ...FORK_INVARIANTS,
  ...DRIVE_INVARIANTS,
  ...HEAL_INVARIANTS,
  ...PROCESS_INVARIANTS,
];
