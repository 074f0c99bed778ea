import { type ExecId, isExecId, type TerminalSize } from "@holdfast/contract";
import type { ExecOrder, KeeperExec, KeepPolicy, KeptRun } from "@holdfast/engine";
import { type Ask, ask, nothing, oneOf } from "./ask.ts";
import { readSlice } from "./journal.ts";
import { REQUEST } from "./protocol.ts";
import { type Reader, WireError, type Writer } from "./wire.ts";

const STATES = ["running", "exited", "timed_out", "cancelled"] as const;
/** An Exec with empty strings. */
const SMALLEST_EXEC = 57;
const POLICIES: Record<KeepPolicy["on"], number> = { failure: 1, always: 2 };
const KEPT_STATES = ["running", "waiting", "done", "stopped", "given_up"] as const;
/** A row of runs with an empty id. */
const SMALLEST_KEPT = 17;

export function readExecId(from: Reader): ExecId {
  const id = from.str();
  if (!isExecId(id)) throw new WireError("an exec id that is none");
  return id;
}

export function readExec(from: Reader): KeeperExec {
  return {
    id: readExecId(from),
    state: oneOf(STATES, from.u8(), "state of an exec"),
    pid: from.u32(),
    exitCode: from.i32(),
    signal: from.u32(),
    failure: from.str(),
    startedAt: from.u64(),
    endedAt: from.u64(),
    journalFloor: from.u64(),
    journalEnd: from.u64(),
    digest: from.str(),
  };
}

function writeOrder(out: Writer, order: ExecOrder): void {
  out.str(order.id);
  out.strs(order.argv);
  out.strs(Object.entries(order.env).map(([name, value]) => `${name}=${value}`));
  out.str(order.cwd);
  out.str(order.user);
  out.u64(order.timeoutMs);
  out.flag(order.stdin);
  out.u16(order.tty?.cols ?? 0);
  out.u16(order.tty?.rows ?? 0);
  out.u64(order.journalCapBytes);
  out.str(order.digest);
}

const readStarted = (from: Reader) => ({ existed: from.flag(), exec: readExec(from) });

export const startExec = (order: ExecOrder): Ask<{ existed: boolean; exec: KeeperExec }> =>
  ask(REQUEST.execStart, (out) => writeOrder(out, order), readStarted);

export const keepExec = (order: ExecOrder, policy: KeepPolicy): Ask<{ existed: boolean; exec: KeeperExec }> =>
  ask(
    REQUEST.execKeep,
    (out) => {
      writeOrder(out, order);
      out.u8(POLICIES[policy.on]);
      out.u32(policy.max);
      out.u32(policy.backoffMs);
    },
    readStarted,
  );

function readKept(from: Reader): KeptRun {
  const execId = readExecId(from);
  const state = oneOf(KEPT_STATES, from.u8(), "state of a row");
  const restarts = from.u32();
  const nextAt = from.u64() || null;
  if ((state === "waiting") !== (nextAt !== null)) throw new WireError("a row that waits for nothing");
  return { execId, state, restarts, nextAt };
}

export const listKept = (): Ask<KeptRun[]> =>
  ask(REQUEST.execKept, nothing, (from) => {
    const rows: KeptRun[] = [];
    for (let count = from.count(SMALLEST_KEPT); count > 0; count--) rows.push(readKept(from));
    return rows;
  });

export const readOutput = (id: ExecId, read: { cursor: number; maxBytes: number; waitMs: number }) =>
  ask(
    REQUEST.execRead,
    (out) => {
      out.str(id);
      out.u64(read.cursor);
      out.u32(read.maxBytes);
      out.u32(read.waitMs);
    },
    (from) => readSlice(from, read.cursor),
    read.waitMs > 0 ? "patient" : "normal",
  );

export const writeStdin = (id: ExecId, chunk: { offset: number; data: Uint8Array; end: boolean }) =>
  ask(
    REQUEST.execStdin,
    (out) => {
      out.str(id);
      out.u64(chunk.offset);
      out.flag(chunk.end);
      out.data([chunk.data]);
    },
    // Absolute: a chunk that is sent again may find that stdin has got further than its end.
    (from) => ({ accepted: from.u64() }),
  );

export const signalExec = (id: ExecId, signal: number): Ask<void> =>
  ask(
    REQUEST.execSignal,
    (out) => {
      out.str(id);
      out.u32(signal);
    },
    nothing,
    "urgent",
  );

export const cancelExec = (id: ExecId): Ask<void> =>
  ask(REQUEST.execCancel, (out) => out.str(id), nothing, "urgent");

export const listExecs = (): Ask<KeeperExec[]> =>
  ask(REQUEST.execList, nothing, (from) => {
    const execs: KeeperExec[] = [];
    for (let count = from.count(SMALLEST_EXEC); count > 0; count--) execs.push(readExec(from));
    return execs;
  });

export const forgetExec = (id: ExecId, options: { keepJournal: boolean }): Ask<void> =>
  ask(
    REQUEST.execForget,
    (out) => {
      out.str(id);
      out.flag(options.keepJournal);
    },
    nothing,
  );

export const resizeExec = (id: ExecId, size: TerminalSize): Ask<void> =>
  ask(
    REQUEST.execResize,
    (out) => {
      out.str(id);
      out.u16(size.cols);
      out.u16(size.rows);
    },
    nothing,
    "urgent",
  );
