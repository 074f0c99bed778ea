import {
  type AttemptId,
  type Cause,
  type CheckpointId,
  type Counter,
  type Numbers,
  type StandbyKind,
  type StopReason,
  unreachable,
} from "@holdfast/contract";
import { nextLease } from "./lease.ts";
import { type MountInput, mountStep } from "./mount-step.ts";
import type { Checkpoint, Instance, NewEvent } from "./ports.ts";
import type { Lease, Origin, PhaseState, SandboxRecord, SandboxSpec } from "./records.ts";

/** Everything that can happen to a sandbox. What carries a generation or attempt id is ignored when that is stale. */
export type Input =
  | { type: "launch"; deadline: number }
  | { type: "launched"; generation: number; instance: Instance }
  /** Running begins with its proof, so the time of the transition is the proof's. */
  | {
      type: "proven";
      generation: number;
      provenAt: number;
      keeperBootId: string;
      /** What it serves without: a drive that is gone is no reason to end it. */
      lacking?: Cause | undefined;
    }
  | { type: "launch_failed"; cause: Cause }
  /** Its server ended in the middle of it, and nothing that runs was found of it. */
  | { type: "launch_interrupted"; cause: Cause }
  | { type: "pause" }
  | {
      type: "suspend";
      checkpointId: CheckpointId;
      kind: StandbyKind;
      deadline: number;
      why: string;
      saving?: true;
    }
  /** It goes on as it was. */
  | { type: "suspend_failed"; checkpointId: CheckpointId; cause: Cause }
  /** Its memory is on disk, or is given up where only files are kept. */
  | { type: "suspended"; checkpointId: CheckpointId; checkpoint: Checkpoint | null }
  /** A copy of it is kept on disk, and it goes on. */
  | { type: "saved"; checkpointId: CheckpointId; name: string; sizeBytes: number }
  | { type: "wake"; deadline: number }
  /** Restored and still frozen: from the moment this is stored the checkpoint is spent. */
  | { type: "restored"; generation: number; instance: Instance }
  | { type: "wake_failed"; generation: number; cause: Cause; blame: WakeBlame }
  | { type: "resume" }
  | { type: "died"; generation: number; cause: Cause }
  /** It does not serve, and could not be healed: its processes may well be there. */
  | { type: "given_up"; generation: number; cause: Cause }
  /** Somebody wants it started anew on its files: one that runs, or one that failed and has some. */
  | { type: "restart"; cause: Cause }
  /** Processes were seen of a sandbox that has none by its record. */
  | { type: "lingered" }
  | { type: "delete"; cause: Cause | null }
  | { type: "stop_attempt"; attemptId: AttemptId; deadline: number }
  | { type: "stop_failed"; attemptId: AttemptId; error: string }
  | { type: "absence_observed"; attemptId: AttemptId }
  /** What it was created with is to be something else from now on. */
  | { type: "update"; spec: SandboxSpec; what: string }
  | MountInput;

/** What a failed wake says about the next: nothing, where a server ended; that one try is used up; that none can work. */
export type WakeBlame = "nothing" | "try" | "checkpoint";

/** What to store, in one commit. */
export interface Decision {
  record: SandboxRecord;
  events: NewEvent[];
  counters: Partial<Record<Counter, number>>;
}

type Settings = Pick<
  Numbers,
  "stopBackoffMs" | "exhaustedRecheckMs" | "failedKeptMs" | "restartsMax" | "restartWindowMs"
>;

/**
 * The sandbox's machine: pure, total, and the only place where phase and lease change. Null means that the input does
 * not apply any more; every effect checks for it, which is what fences late answers.
 */
export function decide(
  record: SandboxRecord,
  input: Input,
  now: number,
  settings: Settings,
): Decision | null {
  switch (input.type) {
    case "launch":
      return launch(record, input, now, settings);
    case "launched":
      if (record.phase.name !== "launching" || record.generation !== input.generation) return null;
      return launched(record, input.instance, now);
    case "proven":
      return proven(record, input, now);
    case "launch_failed":
      if (record.phase.name !== "launching" && record.phase.name !== "queued") return null;
      return failLaunch(record, input.cause, now, settings);
    case "launch_interrupted":
      if (record.phase.name !== "launching") return null;
      return launchAgain(record, input.cause, now, settings);
    case "died":
      if (!hasInstance(record) || record.generation !== input.generation) return null;
      return loseMemory(record, input.cause, now, settings);
    case "given_up":
      if (record.phase.name !== "running" || record.generation !== input.generation) return null;
      return loseMemory(record, input.cause, now, settings);
    case "restart":
      return orderedRestart(record, input.cause, now, settings);
    case "pause":
      if (record.phase.name !== "running") return null;
      return outcome(enter(record, { name: "paused" }, now), now, [
        ["sandbox.paused", "The sandbox is frozen in memory."],
      ]);
    case "resume":
      if (record.phase.name !== "paused") return null;
      return outcome(enter(record, { name: "running" }, now), now, [
        ["sandbox.resumed", "The sandbox goes on where it was paused."],
      ]);
    case "suspend":
    case "suspend_failed":
    case "suspended":
    case "saved":
    case "wake":
    case "restored":
    case "wake_failed":
      return sleepStep(record, input, now, settings);
    case "update":
      if (record.phase.name === "deleting" || record.phase.name === "gone") return null;
      return outcome({ ...record, spec: input.spec }, now, [["sandbox.updated", `Changed: ${input.what}.`]]);
    case "lingered":
      return linger(record, now, settings);
    case "delete":
      return remove(record, input.cause, now, settings);
    case "stop_attempt":
    case "stop_failed":
    case "absence_observed":
      return stopStep(record, input, now, settings);
    case "mount":
    case "mounted":
    case "mount_failed":
    case "unmount":
    case "unmounted":
      return mountStep(record, input, now);
    default:
      return unreachable(input);
  }
}

/** What a proof ends, and what the timeline says of it. */
const PROVEN_OF: Partial<Record<PhaseState["name"], [type: NewEvent["type"], is: string]>> = {
  launching: ["sandbox.ready", "proven"],
  waking: ["sandbox.woke", "awake, proven,"],
};

function proven(
  record: SandboxRecord,
  { generation, keeperBootId, provenAt, lacking }: Extract<Input, { type: "proven" }>,
  now: number,
): Decision | null {
  const news = PROVEN_OF[record.phase.name];
  if (news === undefined || record.generation !== generation || record.instance === null) return null;
  // A checkpoint that was not spent has no processes that could have been proven.
  if (record.phase.name === "waking" && !record.phase.consumed) return null;
  const next = enter(known(record, record.instance, keeperBootId), { name: "running" }, provenAt);
  const [type, is] = news;
  if (lacking === undefined) return outcome(next, now, [[type, `The sandbox is ${is} and serves.`]]);
  const message = `The sandbox is ${is} and lacks a drive: ${lacking.message}`;
  return outcome(next, now, [[type, message, { cause: lacking }]]);
}

/** Whether it has processes by its record: those that are to serve, now or in a while. */
export const hasInstance = ({ phase }: SandboxRecord): boolean =>
  phase.name === "running" || phase.name === "paused" || phase.name === "suspending";

type SleepInput = Extract<
  Input,
  { type: "suspend" | "suspend_failed" | "suspended" | "saved" | "wake" | "restored" | "wake_failed" }
>;

function sleepStep(
  record: SandboxRecord,
  input: SleepInput,
  now: number,
  settings: Settings,
): Decision | null {
  const { phase } = record;
  switch (input.type) {
    case "suspend": {
      if (phase.name !== "running") return null;
      const { checkpointId, kind, deadline, why, saving } = input;
      const asked = { name: "suspending", checkpointId, kind, deadline, ...(saving && { saving }) } as const;
      const type = saving ? "sandbox.saving" : "sandbox.suspending";
      return outcome(enter(record, asked, now), now, [[type, why, { kind }]]);
    }
    case "suspend_failed": {
      if (phase.name !== "suspending" || phase.checkpointId !== input.checkpointId) return null;
      const { cause } = input;
      const [type, left] = phase.saving
        ? (["sandbox.checkpoint_failed", "The sandbox goes on, and no checkpoint was kept"] as const)
        : (["sandbox.standby_failed", "The sandbox stays awake"] as const);
      return outcome(enter(record, { name: "running" }, now), now, [
        [type, `${left}: ${cause.message}`, { cause }],
      ]);
    }
    case "saved": {
      const { checkpointId, name, sizeBytes } = input;
      if (phase.name !== "suspending" || !phase.saving || phase.checkpointId !== checkpointId) return null;
      return outcome(enter(record, { name: "running" }, now), now, [
        ["sandbox.checkpointed", `Checkpoint ${name} is kept.`, { checkpointId, name, sizeBytes }],
      ]);
    }
    case "suspended":
      return suspended(record, input, now, settings);
    case "wake":
      return wake(record, input, now, settings);
    case "restored": {
      if (phase.name !== "waking" || phase.consumed || record.generation !== input.generation) return null;
      const { keeperBootId } = phase.checkpoint;
      const instance = { ...input.instance, ...(keeperBootId === null ? {} : { keeperBootId }) };
      const lease = booted(record.lease, instance);
      return outcome({ ...record, instance, lease, phase: { ...phase, consumed: true } }, now, []);
    }
    case "wake_failed":
      return wakeFailed(record, input, now, settings);
    default:
      return unreachable(input);
  }
}

function suspended(
  record: SandboxRecord,
  { checkpointId, checkpoint }: Extract<Input, { type: "suspended" }>,
  now: number,
  settings: Settings,
): Decision | null {
  const { phase, generation } = record;
  if (phase.name !== "suspending" || phase.saving || phase.checkpointId !== checkpointId) return null;
  const lease = nextLease(record.lease, { type: "need_stop", reason: "standby", generation }, now, settings);
  if (lease === null) return null;
  const keeperBootId = record.instance?.keeperBootId ?? null;
  const kept = checkpoint === null ? null : { ...checkpoint, keeperBootId };
  const next = { ...enter(record, { name: "standby", checkpoint: kept, failedWakes: 0 }, now), lease };
  const message =
    checkpoint === null
      ? "The files are kept and the processes are ended; a call starts it anew."
      : "The memory is on disk; a call wakes it.";
  return outcome(next, now, [["sandbox.standby", message, { sizeBytes: checkpoint?.sizeBytes ?? 0 }]]);
}

/** Only where nothing of the last instance is left. What has no checkpoint is launched anew. */
function wake(
  record: SandboxRecord,
  { deadline }: Extract<Input, { type: "wake" }>,
  now: number,
  settings: Settings,
): Decision | null {
  const { phase } = record;
  if (phase.name !== "standby" || record.lease.state !== "none") return null;
  const { checkpoint, failedWakes } = phase;
  if (checkpoint === null) {
    // It has served, and its files are what is kept of it: no launch of it is a first one.
    const served = { ...record, restarts: record.restarts ?? { since: now, count: 0 } };
    return outcome(enter(served, { name: "queued", restart: FILES_ONLY }, now), now, [
      ["sandbox.waking", FILES_ONLY.message, { kind: "files" }],
    ]);
  }
  const generation = record.generation + 1;
  const hold = { type: "hold", generation, startupDeadline: deadline } as const;
  const lease = nextLease(record.lease, hold, now, settings);
  if (lease === null) return null;
  const waking = { name: "waking", checkpoint, consumed: false, failedWakes, deadline } as const;
  const next = { ...enter(record, waking, now), generation, lease, instance: null };
  return outcome(next, now, [["sandbox.waking", "The memory is being restored.", { kind: "memory" }]]);
}

const FILES_ONLY: Cause = {
  code: "files_standby",
  message: "Only its files were kept in standby; it is started anew on them.",
};

/** A second try is safe only while nothing has run that came out of the checkpoint. */
function wakeFailed(
  record: SandboxRecord,
  { generation, cause, blame }: Extract<Input, { type: "wake_failed" }>,
  now: number,
  settings: Settings,
): Decision | null {
  const { phase } = record;
  if (phase.name !== "waking" || record.generation !== generation) return null;
  const failedWakes = phase.failedWakes + (blame === "nothing" ? 0 : 1);
  if (phase.consumed || blame === "checkpoint" || failedWakes >= WAKES_MAX) {
    const decision = loseMemory(record, cause, now, settings);
    const lost = said(record, now, ["sandbox.memory_lost", cause.message, { cause }]);
    return { ...decision, events: [lost, ...decision.events] };
  }
  const order = { type: "need_stop", reason: "standby", generation } as const;
  const lease = nextLease(record.lease, order, now, settings) ?? record.lease;
  const back = { name: "standby", checkpoint: phase.checkpoint, failedWakes } as const;
  const next = { ...enter(record, back, now), lease, instance: null };
  return outcome(next, now, [["sandbox.wake_failed", cause.message, { cause, failedWakes }]]);
}

const WAKES_MAX = 2;

/** Its processes are gone and won't come back; its policy decides what that means. */
const loseMemory = (record: SandboxRecord, cause: Cause, now: number, settings: Settings): Decision =>
  mayRestart(record, now, settings)
    ? restart(record, cause, now, settings)
    : fail(record, "died", usedUp(record, cause, settings), now, settings);

/** One that would be started again but for how often that was done says so. */
function usedUp({ spec, restarts }: SandboxRecord, cause: Cause, { restartWindowMs }: Settings): Cause {
  if (spec.lifecycle.onMemoryLoss !== "cold-start" || restarts === null) return cause;
  const within = `${Math.round(restartWindowMs / 60_000)} min`;
  const message = `${cause.message} It was started again ${restarts.count} times within ${within} already, and is not once more.`;
  return { code: "keeps_breaking", message, cause };
}

function launch(
  record: SandboxRecord,
  input: Extract<Input, { type: "launch" }>,
  now: number,
  settings: Settings,
): Decision | null {
  if (record.phase.name !== "queued") return null;
  const generation = record.generation + 1;
  const { deadline } = input;
  const lease = nextLease(
    record.lease,
    { type: "hold", generation, startupDeadline: deadline },
    now,
    settings,
  );
  if (lease === null) return null;
  const memorySince = beginsWithMemory(record) ? record.memorySince : generation;
  const next = enter(
    { ...record, generation, memorySince, lease, instance: null },
    { name: "launching", deadline },
    now,
  );
  return { record: next, events: [], counters: {} };
}

function launched(record: SandboxRecord, made: Instance, now: number): Decision {
  const { forkedFrom } = record;
  const keeperBootId = beginsWithMemory(record) ? forkedFrom?.keeperBootId : null;
  const instance = { ...made, ...(keeperBootId && { keeperBootId }) };
  return outcome({ ...record, instance, lease: booted(record.lease, instance) }, now, [
    ["sandbox.launched", "The instance was started.", { pid: instance.pid }],
  ]);
}

/** Whether what it is launched from is a checkpoint: then the keeper, its execs and their memory are not new. */
const beginsWithMemory = (record: SandboxRecord): boolean => forkSource(record)?.kind === "memory";

/** What its launch copies. Once it has served, its own files are what it is launched on. */
export const forkSource = (record: SandboxRecord): Origin | null =>
  hasServed(record) ? null : record.forkedFrom;

const known = (record: SandboxRecord, instance: Instance, keeperBootId: string): SandboxRecord => ({
  ...record,
  instance: { ...instance, keeperBootId },
});

/** A pid means something only within one boot of the host, so the lease carries it. */
const booted = (lease: Lease, instance: Instance): Lease =>
  lease.state === "held" ? { ...lease, hostBootId: instance.hostBootId } : lease;

/** One that died after it ran, or slept without its memory, is launched again; no other is launched on files that it has. */
export const hasServed = ({ restarts }: SandboxRecord): boolean => restarts !== null;

/** A sandbox that has served before has files that are worth keeping, and keeps its name with them. */
const failLaunch = (record: SandboxRecord, cause: Cause, now: number, settings: Settings): Decision =>
  hasServed(record)
    ? fail(record, "died", cause, now, settings)
    : fail({ ...record, nameHeld: false }, "launch_failed", cause, now, settings);

/**
 * A launch whose server ended has failed at nothing, and is made again. One that has served follows its policy. A first
 * one begins anew, without what was half made, and only once: should it be what ends servers, it ends no third.
 */
function launchAgain(record: SandboxRecord, cause: Cause, now: number, settings: Settings): Decision {
  if (hasServed(record) && mayRestart(record, now, settings)) return restart(record, cause, now, settings);
  const { generation } = record;
  const isFirst = generation === (record.forkedFrom?.generation ?? 0) + 1;
  // Execs that it began with may have ended in it, and somebody may have been told: they must not run again.
  const hasRun = beginsWithMemory(record) && record.instance !== null;
  if (!isFirst || hasRun) return failLaunch(record, cause, now, settings);
  const order = { type: "need_stop", reason: "launch_failed", generation } as const;
  const lease = nextLease(record.lease, order, now, settings);
  const next = { ...enter(record, { name: "queued" }, now), lease: lease ?? record.lease };
  const message = `${cause.message} It is launched again.`;
  return outcome(next, now, [["sandbox.restarting", message, { cause, memoryLost: false }]]);
}

function mayRestart({ spec, restarts }: SandboxRecord, now: number, settings: Settings): boolean {
  if (spec.lifecycle.onMemoryLoss !== "cold-start") return false;
  return restarts === null || !isRecent(restarts, now, settings) || restarts.count < settings.restartsMax;
}

const isRecent = ({ since }: { since: number }, now: number, { restartWindowMs }: Settings): boolean =>
  now - since < restartWindowMs;

/** What somebody orders is not counted, and begins the count anew: it is no sign that it breaks by itself. A launch that failed has left no files. */
function orderedRestart(
  record: SandboxRecord,
  cause: Cause,
  now: number,
  settings: Settings,
): Decision | null {
  const { phase, lease, nameHeld } = record;
  const restarts = { since: now, count: 0 };
  const isRevived = phase.name === "failed" && nameHeld && lease.state === "none";
  if (!isRevived && phase.name !== "running") return null;
  const decision = restart({ ...record, endedAt: null }, cause, now, settings);
  // Of what failed nothing is left to stop.
  const next = isRevived ? { ...decision.record, lease } : decision.record;
  return { ...decision, record: { ...next, restarts } };
}

/** Memory is lost and files are not: what is left of the instance is stopped, then launched again on the same files. */
function restart(record: SandboxRecord, cause: Cause, now: number, settings: Settings): Decision {
  const { generation, restarts } = record;
  const lease = nextLease(record.lease, { type: "need_stop", reason: "replace", generation }, now, settings);
  const next = {
    ...enter(record, { name: "queued", restart: cause }, now),
    lease: lease ?? record.lease,
    restarts:
      restarts !== null && isRecent(restarts, now, settings)
        ? { ...restarts, count: restarts.count + 1 }
        : { since: now, count: 1 },
  };
  const message = `${cause.message} Its memory is lost; it is started again on the same files.`;
  return outcome(next, now, [["sandbox.restarting", message, { cause, memoryLost: true }]]);
}

function linger(record: SandboxRecord, now: number, settings: Settings): Decision | null {
  const { phase, generation } = record;
  if ((phase.name !== "failed" && phase.name !== "standby") || record.lease.state !== "none") return null;
  const reason = phase.name === "failed" ? "died" : "standby";
  const lease = nextLease(record.lease, { type: "need_stop", reason, generation }, now, settings);
  if (lease === null) return null;
  return outcome({ ...record, lease }, now, [
    ["lease.stop_needed", "Processes were found of a sandbox that should have none."],
  ]);
}

function fail(
  record: SandboxRecord,
  reason: StopReason,
  cause: Cause,
  now: number,
  settings: Settings,
): Decision {
  const lease = nextLease(
    record.lease,
    { type: "need_stop", reason, generation: record.generation },
    now,
    settings,
  );
  const phase: PhaseState = { name: "failed", cause, keptUntil: now + settings.failedKeptMs };
  const next = { ...enter(record, phase, now), lease: lease ?? record.lease, endedAt: now };
  return { ...outcome(next, now, [["sandbox.failed", cause.message, { cause }]]), counters: { failed: 1 } };
}

function remove(
  record: SandboxRecord,
  cause: Cause | null,
  now: number,
  settings: Settings,
): Decision | null {
  if (record.phase.name === "gone") return null;
  // One that is being deleted already is told again only where what it owes could no longer be read.
  if (record.phase.name === "deleting" && record.lease.state !== "quarantined") return null;
  const order = { type: "need_stop", reason: "delete", generation: record.generation } as const;
  const lease = nextLease(record.lease, order, now, settings);
  const was = record.phase.name === "failed" ? record.phase.cause : cause;
  const next = { ...enter(record, { name: "deleting", cause: was }, now), lease: lease ?? record.lease };
  return outcome(next, now, [["sandbox.deleting", "The delete was accepted.", quarantined(record)]]);
}

/** A lease that could not be read is kept in the event when an explicit delete takes its place. */
const quarantined = (record: SandboxRecord): Record<string, unknown> =>
  record.lease.state === "quarantined" ? { quarantinedLease: record.lease.raw } : {};

function stopStep(
  record: SandboxRecord,
  input: Extract<Input, { attemptId: AttemptId }>,
  now: number,
  settings: Settings,
): Decision | null {
  const type = STOP_STEPS[input.type];
  const lease = nextLease(record.lease, { ...input, type } as Parameters<typeof nextLease>[1], now, settings);
  if (lease === null) return null;
  const next = { ...record, lease };
  switch (lease.state) {
    case "stopping":
      return outcome(next, now, [
        ["lease.stopping", `Stop attempt ${lease.attempts}.`, { reason: lease.reason }],
      ]);
    case "stop_needed":
      return outcome(next, now, [
        ["lease.stop_failed", lease.lastError ?? "", { nextAttemptAt: lease.nextAttemptAt }],
      ]);
    case "exhausted":
      return outcome(next, now, [["lease.exhausted", lease.lastError ?? "", { attempts: lease.attempts }]]);
    default:
      return released({ ...next, instance: null }, now);
  }
}

const STOP_STEPS = {
  stop_attempt: "attempt",
  stop_failed: "attempt_failed",
  absence_observed: "absence_observed",
} as const;

function released(record: SandboxRecord, now: number): Decision {
  if (record.phase.name !== "deleting") {
    return outcome(record, now, [["lease.released", "The instance was observed absent."]]);
  }
  const gone = {
    ...enter(record, { name: "gone", cause: record.phase.cause }, now),
    nameHeld: false,
    endedAt: now,
  };
  const decision = outcome(gone, now, [["sandbox.terminated", "Nothing of the sandbox is left."]]);
  return { ...decision, counters: { terminated: 1 } };
}

const enter = (record: SandboxRecord, phase: PhaseState, now: number): SandboxRecord => ({
  ...record,
  phase,
  transitionedAt: now,
});

type Said = [type: NewEvent["type"], message: string, data?: Record<string, unknown>];

function said(
  { id: sandboxId, generation }: SandboxRecord,
  at: number,
  [type, message, data = {}]: Said,
): NewEvent {
  return { at, type, sandboxId, generation, message, data };
}

const outcome = (record: SandboxRecord, now: number, what: Said[]): Decision => ({
  record,
  events: what.map((each) => said(record, now, each)),
  counters: {},
});

/** Whether ending this instance ends its files too: nothing is worth keeping of a launch that failed. */
export function destroysFiles(record: SandboxRecord): boolean {
  if (record.phase.name === "deleting") return true;
  return "reason" in record.lease && record.lease.reason === "launch_failed";
}
