import { type ExecId, isExecId, type TerminalSize } from "@holdfast/contract";
import type { ExecOrder, KeeperExec, SupervisedRun, SupervisePolicy } from "@holdfast/engine";
import { readSlice } from "./journal-codec.ts";
import { REQUEST } from "./protocol.ts";
import { nothing, oneOf, type RequestSpec, request } from "./request.ts";
import { type Reader, WireError, type Writer } from "./wire.ts";

const STATES = ["running", "exited", "timed_out", "cancelled"] as const;
/** Minimum size of an encoded exec, in which all strings are empty. */
const SMALLEST_EXEC = 57;
const POLICIES: Record<SupervisePolicy["on"], number> = { failure: 1, always: 2 };
const SUPERVISED_STATES = ["running", "waiting", "done", "stopped", "given_up"] as const;
/** Minimum size of an encoded supervised run, in which the id is empty. */
const SMALLEST_SUPERVISED = 17;

function readExecId(from: Reader): ExecId {
  const id = from.str();
  if (!isExecId(id)) throw new WireError("an invalid exec id");
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

export const startExec = (order: ExecOrder): RequestSpec<{ existed: boolean; exec: KeeperExec }> =>
  request(REQUEST.execStart, (out) => writeOrder(out, order), readStarted);

export const superviseExec = (
  order: ExecOrder,
  policy: SupervisePolicy,
): RequestSpec<{ existed: boolean; exec: KeeperExec }> =>
  request(
    REQUEST.execSupervise,
    (out) => {
      writeOrder(out, order);
      out.u8(POLICIES[policy.on]);
      out.u32(policy.max);
      out.u32(policy.backoffMs);
    },
    readStarted,
  );

function readSupervised(from: Reader): SupervisedRun {
  const execId = readExecId(from);
  const state = oneOf(SUPERVISED_STATES, from.u8(), "state of a supervised command");
  const restarts = from.u32();
  const nextAt = from.u64() || null;
  if ((state === "waiting") !== (nextAt !== null))
    throw new WireError("a supervised command that waits without a time");
  return { execId, state, restarts, nextAt };
}

export const listSupervised = (): RequestSpec<SupervisedRun[]> =>
  request(REQUEST.execSupervised, nothing, (from) => {
    const runs: SupervisedRun[] = [];
    for (let count = from.count(SMALLEST_SUPERVISED); count > 0; count--) runs.push(readSupervised(from));
    return runs;
  });

export const readOutput = (id: ExecId, read: { cursor: number; maxBytes: number; waitMs: number }) =>
  request(
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

export const holdExec = (id: ExecId, hold: { cursor: number; leaseMs: number }): RequestSpec<void> =>
  request(
    REQUEST.execHold,
    (out) => {
      out.str(id);
      out.u64(hold.cursor);
      out.u32(hold.leaseMs);
    },
    nothing,
  );

export const writeStdin = (id: ExecId, chunk: { offset: number; data: Uint8Array; end: boolean }) =>
  request(
    REQUEST.execStdin,
    (out) => {
      out.str(id);
      out.u64(chunk.offset);
      out.flag(chunk.end);
      out.data([chunk.data]);
    },
    // The answer is a position in the whole of stdin and not in the chunk: if the chunk was sent before, stdin may
    // already be past the chunk's end.
    (from) => ({ accepted: from.u64() }),
  );

export const signalExec = (id: ExecId, signal: number): RequestSpec<void> =>
  request(
    REQUEST.execSignal,
    (out) => {
      out.str(id);
      out.u32(signal);
    },
    nothing,
    "urgent",
  );

export const cancelExec = (id: ExecId): RequestSpec<void> =>
  request(REQUEST.execCancel, (out) => out.str(id), nothing, "urgent");

export const listExecs = (): RequestSpec<KeeperExec[]> =>
  request(REQUEST.execList, nothing, (from) => {
    const execs: KeeperExec[] = [];
    for (let count = from.count(SMALLEST_EXEC); count > 0; count--) execs.push(readExec(from));
    return execs;
  });

export const forgetExec = (id: ExecId, options: { keepJournal: boolean }): RequestSpec<void> =>
  request(
    REQUEST.execForget,
    (out) => {
      out.str(id);
      out.flag(options.keepJournal);
    },
    nothing,
  );

export const resizeExec = (id: ExecId, size: TerminalSize): RequestSpec<void> =>
  request(
    REQUEST.execResize,
    (out) => {
      out.str(id);
      out.u16(size.cols);
      out.u16(size.rows);
    },
    nothing,
    "urgent",
  );
