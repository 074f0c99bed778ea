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
import type { Stage } from "./exec.ts";
import type { KeptRun } from "./ports.ts";
import type { ExecRecord, ProcessRecord, Seen } from "./records.ts";

/** Runs are counted from one. */
export const runId = (id: ProcessId, run: number): ExecId => `${id}-${run}` as ExecId;

/** What a run's id says; null where it is no run's. */
export function runOf(id: string): { process: ProcessId; run: number } | null {
  const [process, run, ...rest] = id.split("-");
  if (process === undefined || run === undefined || rest.length > 0) return null;
  return isProcessId(process) && /^[1-9]\d{0,14}$/.test(run) ? { process, run: Number(run) } : null;
}

/** How far the last run on record has come. One that is not on record any more has come to an end. */
export type LastRun = { is: "open"; stage: Stage } | { is: "over"; exec: ExecRecord | null };

export interface ProcessFacts {
  record: ProcessRecord;
  last: LastRun;
  /** The row as its keeper has it, asked when it had the last run; null: it has none; unknown: it could not be asked. */
  kept: KeptRun | null | "unknown";
  /** Whether the memory is still there that the last run began in, and with it the keeper that would begin the next. */
  isRemembered: boolean;
}

export type Verdict =
  | { do: "nothing" }
  /** Ends the last run, and what would follow it. */
  | { do: "cancel" }
  /** Begins the next run. */
  | { do: "begin" }
  | { do: "end"; state: ProcessEnd; cause: Cause | null };

/**
 * What is to be done about a process that is not over. While the memory is there in which it was begun, its keeper decides what
 * follows a run, and is only asked; it has decided by itself long before anybody hears of it. Without that memory nothing
 * follows unless it is begun from here. So there are never two that begin a run.
 */
export function verdict(facts: ProcessFacts): Verdict {
  const { record, last, kept, isRemembered } = facts;
  const { order, run, spec } = record;
  const isOrdered = order !== null && (order.do === "stop" || order.after >= run);
  if (last.is === "open") return isOrdered ? { do: "cancel" } : { do: "nothing" };
  const mayFollow = spec.restart !== null && isRemembered;
  if (mayFollow && kept === "unknown") return { do: "nothing" };
  const row = mayFollow && kept !== "unknown" ? kept : null;
  // Runs are put on record first, and then it is asked what became of the last.
  if (row !== null && !isLast(row, record)) return { do: "nothing" };
  if (isOrdered) {
    if (row?.state === "waiting") return { do: "cancel" };
    if (row?.state === "running") return { do: "nothing" };
    return order.do === "restart" ? { do: "begin" } : { do: "end", state: "stopped", cause: STOPPED };
  }
  return row === null ? unkept(record, last.exec) : followed(record, last.exec, row);
}

/** Whether a row has come no further than the record. */
const isLast = (row: KeptRun, { run }: ProcessRecord): boolean => (runOf(row.execId)?.run ?? 0) <= run;

/** Where no keeper has anything more to say about it. */
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

/** By the word of its keeper. */
function followed(record: ProcessRecord, exec: ExecRecord | null, row: KeptRun): Verdict {
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

const STOPPED: Cause = { code: "stopped", message: "Somebody ordered its end." };
const FORGOTTEN: Cause = { code: "lost", message: "Nothing is known of its last run any more." };

export type Ending = Pick<ExecRecord, "status" | "exitCode" | "signal" | "cause">;

/** In the middle of a sentence. */
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

/** Something that has to be seen of a run before it is ready. */
export type Goal = ReadyWhen;

/**
 * What has yet to be seen of the last run, in the generation that its sandbox is of now. A port is looked at again after every
 * wake, because connections don't outlive one; what was said once was said.
 */
export function goalsOf(
  { spec, run, generation: begunIn, seen }: Pick<ProcessRecord, "spec" | "run" | "generation" | "seen">,
  generation: number,
): Goal[] {
  const { readyWhen, connectBy } = spec;
  const isFresh = seen?.run === run && seen.state === "ready" && seen.generation === generation;
  const isWoken = begunIn < generation;
  const isMet = isFresh || wasSaid(seen, run);
  return [
    ...(readyWhen === null || isMet ? [] : [readyWhen]),
    ...(connectBy === null || !isWoken || isFresh ? [] : [connectBy]),
  ];
}

/** Whether the text was written that a run is ready by. Its journal may have dropped that since. */
export const wasSaid = (seen: Seen | null, run: number): boolean =>
  seen?.run === run && (seen.state === "ready" ? seen.how === "output" : seen.said === true);

/** The last run was not ready in time, in this generation. */
const unreadiness = ({ seen, run }: ProcessRecord, generation: number) =>
  seen?.run === run && seen.state === "unready" && seen.generation === generation ? seen : null;

// ── Status ───────────────────────────────────────────────────────────────────────────────────────────────────────

/** The one place where the status of a process is made. `generation` is of its sandbox, now; what failed does nothing by itself. */
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
    const message = `${how}; its sandbox failed, and the next one follows when that is restarted.`;
    return { status: "waiting", cause: { code: "sandbox_failed", message } };
  }
  return { status: "waiting", cause: { code: "between_runs", message: `${how}; the next one follows.` } };
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
  message: "Its sandbox was woken, and it has yet to be seen whether it serves again.",
};

/** Since when it is ready, and what that is known by. */
export function readyOf(
  { seen, run }: { seen: Seen | null; run: number },
  status: ProcessStatus,
  startedAt: number | null,
): Process["ready"] {
  if (status !== "ready") return null;
  if (seen?.run === run && seen.state === "ready")
    return { at: new Date(seen.at).toISOString(), how: seen.how };
  return startedAt === null ? null : { at: new Date(startedAt).toISOString(), how: "running" };
}
