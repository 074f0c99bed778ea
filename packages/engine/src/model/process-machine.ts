import {
  type Cause,
  type ExecId,
  isProcessId,
  type Process,
  type ProcessEnd,
  type ProcessId,
  type ProcessStatus,
  type ReadyWhen,
  unreachable,
} from "@holdfast/contract";
import { iso } from "../lib/format.ts";
import type { SupervisedRun } from "../ports/index.ts";
import type { ExecRecord, ProcessRecord, Seen } from "../ports/records.ts";
import type { Stage } from "./exec-outcome.ts";

/** Returns the exec id of a run. The first run has number 1. */
export const runId = (id: ProcessId, run: number): ExecId => `${id}-${run}` as ExecId;

/** Splits the exec id of a run into process id and run number; null if the exec is not a run. */
export function runOf(id: string): { process: ProcessId; run: number } | null {
  const [process, run, ...rest] = id.split("-");
  if (process === undefined || run === undefined || rest.length > 0) return null;
  return isProcessId(process) && /^[1-9]\d{0,14}$/.test(run) ? { process, run: Number(run) } : null;
}

/**
 * The state of the last recorded run. `exec` is null if its record no longer exists, which means that the run has
 * ended.
 */
export type LastRun = { is: "open"; stage: Stage } | { is: "over"; exec: ExecRecord | null };

export interface ProcessFacts {
  record: ProcessRecord;
  last: LastRun;
  /**
   * The keeper's report on the supervised command, requested after the keeper had received the last run. Null: the
   * keeper does not know the command. `unknown`: the keeper could not be asked.
   */
  kept: SupervisedRun | null | "unknown";
  /**
   * Whether the memory in which the last run began still exists. If so, the keeper in that memory, which would start
   * the next run, exists too.
   */
  isRemembered: boolean;
}

export type Verdict =
  | { do: "nothing" }
  /** Cancels the last run: the run ends if it has not ended yet, and the keeper starts no run after it. */
  | { do: "cancel" }
  /** Starts the next run. */
  | { do: "begin" }
  | { do: "end"; state: ProcessEnd; cause: Cause | null };

/**
 * Decides the server's next action for a process that has not ended. Normally the keeper restarts the process, as the
 * restart policy says, and the server only asks the keeper for the result. The server starts a run in three cases: the
 * memory in which the last run began is lost, and its keeper with it; the keeper does not supervise the process; or a
 * client has requested a restart, and the keeper has no run that is running or waiting. In none of these cases does the
 * keeper start a run, so the same run is never started twice.
 */
export function verdict(facts: ProcessFacts): Verdict {
  const { record, last, kept, isRemembered } = facts;
  const { order, run, spec } = record;
  const isOrdered = order !== null && (order.do === "stop" || order.after >= run);
  if (last.is === "open") return isOrdered ? { do: "cancel" } : { do: "nothing" };
  const mayFollow = spec.restart !== null && isRemembered;
  if (mayFollow && kept === "unknown") return { do: "nothing" };
  const row = mayFollow && kept !== "unknown" ? kept : null;
  // The keeper has started runs that are not recorded yet. These runs must be recorded before a verdict on the last run
  // is possible.
  if (row !== null && !isLast(row, record)) return { do: "nothing" };
  if (isOrdered) {
    if (row?.state === "waiting") return { do: "cancel" };
    if (row?.state === "running") return { do: "nothing" };
    return order.do === "restart" ? { do: "begin" } : { do: "end", state: "stopped", cause: STOPPED };
  }
  return row === null ? unkept(record, last.exec) : followed(record, last.exec, row);
}

/** Whether the keeper's last run is already recorded. */
const isLast = (row: SupervisedRun, { run }: ProcessRecord): boolean => (runOf(row.execId)?.run ?? 0) <= run;

/**
 * Returns the verdict for a process that no keeper supervises: it has no restart policy, or its keeper is gone or does
 * not know the command.
 */
function unkept({ spec }: ProcessRecord, exec: ExecRecord | null): Verdict {
  const cause = exec === null ? FORGOTTEN : endCause(exec);
  switch (exec?.status) {
    case "cancelled":
      return { do: "end", state: "stopped", cause };
    case "refused":
      return { do: "end", state: "given_up", cause: exec.cause };
    case "exited":
    case "timed_out": {
      const isDone = spec.restart === null || (spec.restart.on === "failure" && exec.exitCode === 0);
      return isDone ? { do: "end", state: "exited", cause } : { do: "begin" };
    }
    default:
      return spec.restart === null ? { do: "end", state: "lost", cause } : { do: "begin" };
  }
}

/** Returns the verdict that follows from the keeper's report. */
function followed(record: ProcessRecord, exec: ExecRecord | null, row: SupervisedRun): Verdict {
  switch (row.state) {
    case "running":
    case "waiting":
      return { do: "nothing" };
    case "done":
      return { do: "end", state: "exited", cause: exec === null ? null : endCause(exec) };
    case "stopped":
      return { do: "end", state: "stopped", cause: STOPPED };
    case "given_up": {
      const how = exec === null ? "ended" : howItEnded(exec);
      const message = `It was started again ${row.restarts} times in a row; the last run, ${record.run}, ${how}.`;
      return { do: "end", state: "given_up", cause: { code: "too_many_restarts", message } };
    }
    default:
      return unreachable(row.state);
  }
}

const STOPPED: Cause = { code: "stopped", message: "A client stopped the process." };
const FORGOTTEN: Cause = { code: "lost", message: "The record of its last run no longer exists." };

export type Ending = Pick<ExecRecord, "status" | "exitCode" | "signal" | "cause">;

/** Describes how a run ended, as part of a sentence. */
export function howItEnded({ status, exitCode, signal, cause }: Ending): string {
  switch (status) {
    case "exited":
      return signal === null ? `exited with ${exitCode}` : `was ended by ${signal}`;
    case "timed_out":
      return "outlived its timeout";
    case "cancelled":
      return "was cancelled";
    default:
      return cause === null ? `was ${status}` : `was ${status}: ${cause.message.replace(/\.$/, "")}`;
  }
}

const endCause = (exec: ExecRecord): Cause =>
  exec.cause ?? { code: exec.status, message: `Its last run ${howItEnded(exec)}.` };

// ── Readiness ────────────────────────────────────────────────────────────────────────────────────────────────────

/** A condition that must be observed before a run is ready. */
export type Goal = ReadyWhen;

/**
 * Returns the conditions of the last run that are not met yet in the sandbox's current generation. A port is checked
 * again after every wake, because connections do not survive a wake. Text needs to be written only once.
 */
export function goalsOf(
  { spec, run, generation: begunIn, seen }: Pick<ProcessRecord, "spec" | "run" | "generation" | "seen">,
  generation: number,
): Goal[] {
  const { readyWhen, connectBy } = spec;
  const isFresh = seen?.run === run && seen.state === "ready" && seen.generation === generation;
  const isWoken = begunIn < generation;
  const isMet = isFresh || wasWritten(seen, run);
  return [
    ...(readyWhen === null || isMet ? [] : [readyWhen]),
    ...(connectBy === null || !isWoken || isFresh ? [] : [connectBy]),
  ];
}

/**
 * Whether the run has written the text that makes it ready. The record stores that fact, because the run's journal may
 * have dropped the text since.
 */
export const wasWritten = (seen: Seen | null, run: number): boolean =>
  seen?.run === run && (seen.state === "ready" ? seen.how === "output" : seen.said === true);

/** Returns the observation of the last run if it missed its readiness deadline in this generation; otherwise null. */
const unreadiness = ({ seen, run }: ProcessRecord, generation: number) =>
  seen?.run === run && seen.state === "unready" && seen.generation === generation ? seen : null;

// ── Status ───────────────────────────────────────────────────────────────────────────────────────────────────────

/**
 * Computes the status of a process; no other code does. `generation` is the current generation of the process's
 * sandbox. If the sandbox has failed, a process that is due for another run is `waiting` until the sandbox is
 * restarted.
 */
export function judgeProcess(
  facts: ProcessFacts,
  generation: number,
  isSandboxFailed = false,
): { status: ProcessStatus; cause: Cause | null } {
  const { record, last } = facts;
  if (record.end !== null) return { status: record.end.state, cause: record.end.cause };
  if (last.is === "open") return judgeRun(record, last.stage, generation);
  const next = verdict(facts);
  if (next.do === "end") return { status: next.state, cause: next.cause };
  const how = `Run ${record.run} ${last.exec === null ? "ended" : howItEnded(last.exec)}`;
  if (isSandboxFailed) {
    const message = `${how}. The sandbox failed; the next run follows when the sandbox is restarted.`;
    return { status: "waiting", cause: { code: "sandbox_failed", message } };
  }
  return { status: "waiting", cause: { code: "between_runs", message: `${how}; the next run follows.` } };
}

function judgeRun(
  record: ProcessRecord,
  stage: Stage,
  generation: number,
): { status: ProcessStatus; cause: Cause | null } {
  if (stage !== "running") return { status: "starting", cause: null };
  if (goalsOf(record, generation).length === 0) return { status: "ready", cause: null };
  const unready = unreadiness(record, generation);
  if (unready !== null) return { status: "unready", cause: unready.cause };
  const isWoken = record.generation < generation;
  return { status: "starting", cause: isWoken ? VERIFYING : null };
}

const VERIFYING: Cause = {
  code: "verifying",
  message: "The sandbox was woken, and the process has not passed its readiness check since.",
};

/** Returns when the run became ready and which observation showed that; null if the process is not ready. */
export function readyOf(
  { seen, run }: { seen: Seen | null; run: number },
  status: ProcessStatus,
  startedAt: number | null,
): Process["ready"] {
  if (status !== "ready") return null;
  if (seen?.run === run && seen.state === "ready") return { at: iso(seen.at), how: seen.how };
  return startedAt === null ? null : { at: iso(startedAt), how: "running" };
}
