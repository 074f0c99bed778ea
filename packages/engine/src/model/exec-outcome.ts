import { constants } from "node:os";
import {
  type Cause,
  type Dispatched,
  type Exec,
  type ExecStatus,
  invariant,
  isTerminal,
  type SandboxId,
  type TerminalExecStatus,
} from "@holdfast/contract";
import { iso } from "../lib/format.ts";
import type { JournalEnd, KeeperExec } from "../ports/index.ts";
import type { ExecRecord } from "../ports/records.ts";

/** The fields of an exec's record that are set when the exec ends. */
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

/** Returns the record of an exec that is about to be started in the sandbox's current generation. */
export const newExec = (
  { id: sandboxId, record: { generation } }: { id: SandboxId; record: { generation: number } },
  order: Pick<ExecRecord, "id" | "spec" | "digest" | "createdAt">,
): ExecRecord => ({
  ...order,
  sandboxId,
  generation,
  status: "starting",
  exitCode: null,
  signal: null,
  cause: null,
  dispatched: "unknown",
  outputEnd: 0,
  startedAt: null,
  endedAt: null,
});

const SIGNAL_NAMES = new Map(
  Object.entries(constants.signals).map(([name, number]) => [number as number, name]),
);
const signalName = (signal: number): string => SIGNAL_NAMES.get(signal) ?? `SIG${signal}`;
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

/** Converts the keeper's report of an ended exec to an outcome. */
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

/** What the journal shows about an exec on which no keeper can report any more. */
export type Trace = JournalEnd | "no journal" | "not looked for";

/**
 * Returns the outcome of an exec whose keeper can't be asked. An exit record in the journal takes precedence over
 * `status`, because it shows that the command ended by itself before the keeper could report that.
 */
export function unseenEnd(
  status: "lost" | "refused" | "cancelled",
  record: ExecRecord,
  cause: Cause,
  now: number,
  trace: Trace = "not looked for",
): Outcome {
  if (typeof trace === "object" && trace.exec !== null && isEndOf(record, trace.exec))
    return outcomeOf(trace.exec);
  const { startedAt } = record;
  const outputEnd = typeof trace === "object" ? trace.end : record.outputEnd;
  const dispatched = status === "refused" ? "no" : dispatchedBy(record, trace);
  const isNeverBegun = dispatched === "no" && cause.code === SANDBOX_DELETED.code;
  return {
    status,
    exitCode: null,
    signal: null,
    cause: isNeverBegun ? { ...cause, message: DELETED_BEFORE } : cause,
    dispatched,
    startedAt,
    endedAt: now,
    outputEnd,
  };
}

const isEndOf = ({ id, digest }: ExecRecord, exec: KeeperExec): boolean =>
  exec.id === id && exec.digest === digest && exec.state !== "running";

/**
 * Returns whether the command ran. The keeper creates the journal before it forks, so a missing journal proves that
 * nothing ran. A journal without output leaves open whether the command ran.
 */
function dispatchedBy({ startedAt }: ExecRecord, trace: Trace): Dispatched {
  if (startedAt !== null) return "yes";
  if (trace === "no journal") return "no";
  return typeof trace === "object" && trace.end > 0 ? "yes" : "unknown";
}

/**
 * Whether the recorded output is complete. Output may be missing if the command ended unobserved, together with its
 * sandbox.
 */
export function isComplete({
  status,
  cause,
  dispatched,
}: Pick<ExecRecord, "status" | "cause" | "dispatched">): boolean {
  if (dispatched === "no") return true;
  return status !== "lost" && cause?.code !== SANDBOX_DELETED.code;
}

export const SANDBOX_DELETED: Cause = {
  code: "sandbox_deleted",
  message: "The sandbox was deleted while the command ran.",
};
const DELETED_BEFORE = "The sandbox was deleted before the command was begun; it was never run.";

/** Returns the record of an ended exec. No other function gives an exec a terminal status. */
export function ended(record: ExecRecord, outcome: Outcome): ExecRecord {
  invariant(!isTerminal(record.status), "an exec ends once");
  return { ...record, ...outcome };
}

type Identity = Pick<ExecRecord, "id" | "createdAt">;

/**
 * Returns a cursor in the output of an exec. The cursor contains the exec's creation time, because a later exec may
 * have the same id once this exec is forgotten.
 */
export const cursorOf = ({ id, createdAt }: Identity, offset: number): string =>
  `${id}.${createdAt.toString(36)}.${offset}`;

/** Returns the offset in a cursor of this exec; null if the cursor is malformed or belongs to another exec. */
export function offsetIn(cursor: string, { id, createdAt }: Identity): number | null {
  const [of, since, offset, ...rest] = cursor.split(".");
  if (of !== id || since !== createdAt.toString(36) || offset === undefined || rest.length > 0) return null;
  return /^\d{1,15}$/.test(offset) ? Number(offset) : null;
}

/** How far an exec without an outcome has come. */
export type Stage = "queued" | "starting" | "running";

/** Converts a record for callers. `stage` is null if the exec has ended. */
export function viewExec(
  record: ExecRecord,
  { stage, isSuspended }: { stage: Stage | null; isSuspended: boolean },
  retentionMs: number,
): Exec {
  const status: ExecStatus = isTerminal(record.status) ? record.status : (stage ?? record.status);
  const running = status === "running";
  return {
    id: record.id,
    sandboxId: record.sandboxId,
    status,
    argv: [...record.spec.argv],
    exitCode: record.exitCode,
    signal: record.signal,
    cause: record.cause,
    dispatched: running ? "yes" : record.dispatched,
    createdAt: iso(record.createdAt),
    startedAt: iso(record.startedAt),
    endedAt: iso(record.endedAt),
    timeoutMs: record.spec.timeoutMs,
    tty: record.spec.tty !== null,
    keepAwake: record.spec.keepAwake,
    suspended: isSuspended && !isTerminal(status),
    keptUntil: iso(record.endedAt === null ? null : record.endedAt + retentionMs),
    truncated: isTerminal(status) && !isComplete(record),
    cursor: cursorOf(record, record.outputEnd),
  };
}
