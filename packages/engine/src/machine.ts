import {
  type AttemptId,
  type Cause,
  type Counter,
  type Numbers,
  type StopReason,
  unreachable,
} from "@holdfast/contract";
import { nextLease } from "./lease.ts";
import type { Instance, NewEvent } from "./ports.ts";
import type { Lease, PhaseState, SandboxRecord } from "./records.ts";

/** Everything that can happen to a sandbox. What carries a generation or attempt id is ignored when that is stale. */
export type Input =
  | { type: "launch"; deadline: number }
  | { type: "launched"; generation: number; instance: Instance }
  /** Running begins with its proof, so the time of the transition is the proof's. */
  | { type: "proven"; generation: number; provenAt: number; keeperBootId: string }
  | { type: "launch_failed"; cause: Cause }
  | { type: "died"; generation: number; cause: Cause }
  | { type: "delete"; cause: Cause | null }
  | { type: "stop_attempt"; attemptId: AttemptId; deadline: number }
  | { type: "stop_failed"; attemptId: AttemptId; error: string }
  | { type: "absence_observed"; attemptId: AttemptId };

/** What to store, in one commit. */
export interface Decision {
  record: SandboxRecord;
  events: NewEvent[];
  counters: Partial<Record<Counter, number>>;
}

type Settings = Pick<Numbers, "stopBackoffMs" | "exhaustedRecheckMs" | "failedKeptMs">;

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
      return outcome(
        { ...record, instance: input.instance, lease: booted(record.lease, input.instance) },
        now,
        [["sandbox.launched", "The instance was started.", { pid: input.instance.pid }]],
      );
    case "proven":
      if (record.phase.name !== "launching" || record.generation !== input.generation) return null;
      if (record.instance === null) return null;
      return outcome(
        enter(known(record, record.instance, input.keeperBootId), { name: "running" }, input.provenAt),
        now,
        [["sandbox.ready", "The sandbox is proven and serves."]],
      );
    case "launch_failed":
      if (record.phase.name !== "launching" && record.phase.name !== "queued") return null;
      return fail({ ...record, nameHeld: false }, "launch_failed", input.cause, now, settings);
    case "died":
      if (record.phase.name !== "running" || record.generation !== input.generation) return null;
      return fail(record, "died", input.cause, now, settings);
    case "delete":
      return remove(record, input.cause, now, settings);
    case "stop_attempt":
    case "stop_failed":
    case "absence_observed":
      return stopStep(record, input, now, settings);
    default:
      return unreachable(input);
  }
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
  const next = enter({ ...record, generation, lease, instance: null }, { name: "launching", deadline }, now);
  return { record: next, events: [], counters: {} };
}

const known = (record: SandboxRecord, instance: Instance, keeperBootId: string): SandboxRecord => ({
  ...record,
  instance: { ...instance, keeperBootId },
});

/** A pid means something only within one boot of the host, so the lease carries it. */
const booted = (lease: Lease, instance: Instance): Lease =>
  lease.state === "held" ? { ...lease, hostBootId: instance.hostBootId } : lease;

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
  if (record.phase.name === "deleting" || record.phase.name === "gone") return null;
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

function outcome(record: SandboxRecord, now: number, said: Said[]): Decision {
  const { id: sandboxId, generation } = record;
  const events = said.map(([type, message, data]) => ({
    at: now,
    type,
    sandboxId,
    generation,
    message,
    data: data ?? {},
  }));
  return { record, events, counters: {} };
}

/** Whether ending this instance ends its files too: nothing is worth keeping of a launch that failed. */
export function destroysFiles(record: SandboxRecord): boolean {
  if (record.phase.name === "deleting") return true;
  return "reason" in record.lease && record.lease.reason === "launch_failed";
}
