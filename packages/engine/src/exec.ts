import { constants } from "node:os";
import {
  type Cause,
  type Exec,
  type ExecStatus,
  invariant,
  isTerminal,
  type TerminalExecStatus,
} from "@holdfast/contract";
import type { KeeperExec } from "./ports.ts";
import type { ExecRecord } from "./records.ts";

/** The part of a record that an end decides. */
export interface Outcome {
  status: TerminalExecStatus;
  exitCode: number | null;
  signal: string | null;
  cause: Cause | null;
  dispatched: ExecRecord["dispatched"];
  startedAt: number | null;
  endedAt: number;
  outputEnd: number;
}

const SIGNAL_NAMES = new Map(
  Object.entries(constants.signals).map(([name, number]) => [number as number, name]),
);
export const signalName = (signal: number): string => SIGNAL_NAMES.get(signal) ?? `SIG${signal}`;
export const signalNumber = (name: string): number | null => {
  const full = name.startsWith("SIG") ? name : `SIG${name}`;
  return (constants.signals as Record<string, number>)[full] ?? null;
};

const FAILURES: Record<string, string> = {
  not_found: "The command was not found in the sandbox.",
  not_executable: "The command is not executable.",
  cwd: "The working directory does not exist or cannot be entered.",
  user: "The user is not known in the sandbox.",
  journal_full: "The journal's disk is full: output was dropped.",
};

/** What the keeper reports of an ended exec, as an outcome. */
export function outcomeOf(exec: KeeperExec): Outcome {
  invariant(exec.state !== "running", "an outcome is of an ended exec");
  const cause =
    exec.failure === ""
      ? CAUSES[exec.state]
      : { code: exec.failure, message: FAILURES[exec.failure] ?? exec.failure };
  return {
    status: exec.state,
    exitCode: exec.signal === 0 ? exec.exitCode : null,
    signal: exec.signal === 0 ? null : signalName(exec.signal),
    cause,
    dispatched: "yes",
    startedAt: exec.startedAt,
    endedAt: exec.endedAt,
    outputEnd: exec.journalEnd,
  };
}

const CAUSES: Record<"exited" | "timed_out" | "cancelled", Cause | null> = {
  exited: null,
  timed_out: { code: "timeout", message: "The command outlived its timeout; its whole tree was killed." },
  cancelled: { code: "cancelled", message: "The command was cancelled; its whole tree was killed." },
};

/** The end of an exec that no keeper can report any more. */
export function unseenEnd(
  status: "lost" | "refused" | "cancelled",
  record: ExecRecord,
  cause: Cause,
  now: number,
): Outcome {
  const { startedAt, outputEnd } = record;
  const dispatched = status === "refused" ? "no" : startedAt === null ? "unknown" : "yes";
  return { status, exitCode: null, signal: null, cause, dispatched, startedAt, endedAt: now, outputEnd };
}

/** Whether all that the command wrote is known: not where it ended out of sight, with its sandbox. */
export function isComplete({ status, cause }: Pick<ExecRecord, "status" | "cause">): boolean {
  return status !== "lost" && cause?.code !== SANDBOX_DELETED.code;
}

export const SANDBOX_DELETED: Cause = {
  code: "sandbox_deleted",
  message: "The sandbox was deleted while the command ran.",
};

/** The one terminal transition. */
export function ended(record: ExecRecord, outcome: Outcome): ExecRecord {
  invariant(!isTerminal(record.status), "an exec ends once");
  return { ...record, ...outcome };
}

const iso = (time: number | null): string | null => (time === null ? null : new Date(time).toISOString());

export const cursorOf = (record: Pick<ExecRecord, "id">, offset: number): string => `${record.id}.${offset}`;

/** The offset in a cursor of this exec; null where the cursor is malformed or another exec's. */
export function offsetIn(cursor: string, id: string): number | null {
  const [of, offset, ...rest] = cursor.split(".");
  if (of !== id || offset === undefined || rest.length > 0 || !/^\d{1,15}$/.test(offset)) return null;
  return Number(offset);
}

export function viewExec(record: ExecRecord, running: boolean): Exec {
  const status: ExecStatus = record.status === "starting" && running ? "running" : record.status;
  return {
    id: record.id,
    sandboxId: record.sandboxId,
    status,
    argv: [...record.spec.argv],
    exitCode: record.exitCode,
    signal: record.signal,
    cause: record.cause,
    dispatched: running ? "yes" : record.dispatched,
    createdAt: new Date(record.createdAt).toISOString(),
    startedAt: iso(record.startedAt),
    endedAt: iso(record.endedAt),
    timeoutMs: record.spec.timeoutMs,
    truncated: isTerminal(status) && !isComplete(record),
    cursor: cursorOf(record, record.outputEnd),
  };
}
