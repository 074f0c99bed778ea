import type { Cause } from "@holdfast/contract";
import type { Instance, NewEvent } from "../ports/index.ts";
import type { PhaseState, SandboxRecord } from "../ports/records.ts";
import { nextLease } from "./lease-machine.ts";
import { beginsWithMemory, hasServed } from "./sandbox-facts.ts";
import { type Decision, enter, outcome, type SandboxInput, type Settings } from "./transition.ts";
import { fail, mayRestart, restart } from "./transitions-failure.ts";

/** This file contains the transitions of a launch: from queued to running, or to its failure. */

export function launch(
  record: SandboxRecord,
  input: Extract<SandboxInput, { type: "launch" }>,
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

export function launched(
  record: SandboxRecord,
  { instance: made, pid }: Extract<SandboxInput, { type: "launched" }>,
  now: number,
): Decision {
  const { forkedFrom } = record;
  const keeperBootId = beginsWithMemory(record) ? forkedFrom?.keeperBootId : null;
  const instance = { ...made, ...(keeperBootId && { keeperBootId }) };
  return outcome({ ...record, instance }, now, [["sandbox.launched", "The instance was started.", { pid }]]);
}

/**
 * For each phase that a passed proof ends: the type of the event that is recorded, and the words in the event's message
 * that describe the sandbox.
 */
const PROVEN_OF: Partial<Record<PhaseState["name"], [type: NewEvent["type"], is: string]>> = {
  launching: ["sandbox.ready", "proven"],
  waking: ["sandbox.woke", "awake, proven,"],
};

export function proven(
  record: SandboxRecord,
  { generation, keeperBootId, provenAt, lacking }: Extract<SandboxInput, { type: "proven" }>,
  now: number,
): Decision | null {
  const news = PROVEN_OF[record.phase.name];
  if (news === undefined || record.generation !== generation || record.instance === null) return null;
  // As long as the checkpoint is not recorded as spent, the restored processes are frozen, so no proof can have passed.
  if (record.phase.name === "waking" && !record.phase.consumed) return null;
  const next = enter(known(record, record.instance, keeperBootId), { name: "running" }, provenAt);
  const [type, is] = news;
  if (lacking === undefined) return outcome(next, now, [[type, `The sandbox is ${is} and serves.`]]);
  const message = `The sandbox is ${is} and lacks a drive: ${lacking.message}`;
  return outcome(next, now, [[type, message, { cause: lacking }]]);
}

const known = (record: SandboxRecord, instance: Instance, keeperBootId: string): SandboxRecord => ({
  ...record,
  instance: { ...instance, keeperBootId },
});

/** Fails the launch. A sandbox that has served before keeps its files and its name. */
export const failLaunch = (record: SandboxRecord, cause: Cause, now: number, settings: Settings): Decision =>
  hasServed(record)
    ? fail(record, "died", cause, now, settings)
    : fail({ ...record, nameHeld: false }, "launch_failed", cause, now, settings);

/**
 * Repeats a launch that was interrupted by the end of the server, because the launch itself did not fail. A sandbox
 * that has served before follows its restart policy. A first launch is repeated from scratch, but only once, because
 * the launch itself might crash the server.
 */
export function launchAgain(record: SandboxRecord, cause: Cause, now: number, settings: Settings): Decision {
  if (hasServed(record) && mayRestart(record, now, settings)) return restart(record, cause, now, settings);
  const { generation } = record;
  const isFirst = generation === (record.forkedFrom?.generation ?? 0) + 1;
  // Execs from the checkpoint may have ended in this instance, and callers may have seen that, so those execs must not
  // run again.
  const hasRun = beginsWithMemory(record) && record.instance !== null;
  if (!isFirst || hasRun) return failLaunch(record, cause, now, settings);
  const order = { type: "need_stop", reason: "launch_failed", generation } as const;
  const lease = nextLease(record.lease, order, now, settings);
  const next = { ...enter(record, { name: "queued" }, now), lease: lease ?? record.lease };
  const message = `${cause.message} It is launched again.`;
  return outcome(next, now, [["sandbox.restarting", message, { cause, memoryLost: false }]]);
}
