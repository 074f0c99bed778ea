/** The way into an instance: its keeper, as the engine needs it. */
import type { Dispatched, Environment, ExecId, FileChange, FileKind, TerminalSize } from "@holdfast/contract";
import type { Identity } from "./driver-port.ts";

/** The keeper said no. `errno` is a name such as ENOENT where the kernel said so. */
export class KeeperRefusal extends Error {
  readonly reason:
    | "malformed"
    | "too_large"
    | "unknown_type"
    | "stale_generation"
    | "not_greeted"
    | "wrong_identity"
    | "no_such_exec"
    | "exec_conflict"
    | "exec_running"
    | "limit"
    | "system"
    | "bad_handle"
    | "below_floor"
    | "bad_cursor"
    | "not_regular"
    | "reserved_path"
    | "not_on_disk";
  readonly errno: string | null;
  /** The lowest readable cursor, with `below_floor`. */
  readonly floor: number | null;
  constructor(
    reason: KeeperRefusal["reason"],
    message: string,
    errno: string | null = null,
    floor: number | null = null,
  ) {
    super(message);
    this.name = "KeeperRefusal";
    this.reason = reason;
    this.errno = errno;
    this.floor = floor;
  }
}

/**
 * A stream to a port ended before both of its directions had: whoever was at the port reset it or is gone, or the sandbox
 * was stopped, put to sleep or taken over by a later generation. What was read of it is not all.
 */
export class StreamCut extends Error {
  /** What a socket says in the same case. */
  readonly code = "ECONNRESET";
  constructor(why: string) {
    super(why);
    this.name = "StreamCut";
  }
}

/** The link ended before the answer came. The request may have been carried out. */
export class LinkLost extends Error {
  readonly dispatched: Dispatched;
  constructor(why: string, dispatched: Dispatched) {
    super(why);
    this.name = "LinkLost";
    this.dispatched = dispatched;
  }
}

export interface ExecOrder {
  id: ExecId;
  argv: readonly string[];
  env: Environment;
  cwd: string;
  /** Empty for the default user; a name from the image's passwd, or `uid[:gid]`. */
  user: string;
  /** 0: none. */
  timeoutMs: number;
  /** Whether stdin will be written to; otherwise it is /dev/null. */
  stdin: boolean;
  /** Null: pipes. */
  tty: TerminalSize | null;
  journalCapBytes: number;
  /** SHA-256 of everything above, hex: tells a repeated start from a conflicting one. */
  digest: string;
}

/** An exec as the keeper knows it. */
export interface KeeperExec {
  id: ExecId;
  state: "running" | "exited" | "timed_out" | "cancelled";
  pid: number;
  /** -1 where it ended by a signal. */
  exitCode: number;
  /** 0 where it exited. */
  signal: number;
  /** Why the command could not be run at all: `cwd`, `user`, `not_found`, `not_executable`; empty otherwise. */
  failure: string;
  startedAt: number;
  endedAt: number;
  /** Cursors: first readable byte; end of the journal so far or, once ended, of the output up to the end. */
  journalFloor: number;
  journalEnd: number;
  digest: string;
}

/**
 * How a keeper starts a command again by itself. After a run that ended, and was not cancelled: with `failure` an exit with 0
 * is the end of it; otherwise the next run begins after `backoffMs`, doubled with every restart in a row up to a minute, in
 * lived time. A run that lasted a minute begins the row anew. After `max` restarts in a row it is given up.
 */
export interface KeepPolicy {
  on: "failure" | "always";
  max: number;
  backoffMs: number;
}

/**
 * A row of runs as the keeper knows it. Each run is an exec of its own, with an outcome and a journal; its id is that of the
 * first with the number at its end, behind the last hyphen, counted up.
 */
export interface KeptRun {
  /** Of the last run. */
  execId: ExecId;
  /** `waiting` for the next run; `done` by its policy; `stopped` by a cancel; `given_up` after too many restarts. */
  state: "running" | "waiting" | "done" | "stopped" | "given_up";
  /** In a row. */
  restarts: number;
  /** When the next run is due, where it waits. */
  nextAt: number | null;
}

export interface JournalRecord {
  stream: "stdout" | "stderr";
  at: number;
  /** The cursor behind this record. */
  cursor: number;
  data: Uint8Array;
}

export interface JournalSlice {
  records: JournalRecord[];
  /** Where to read on. */
  next: number;
  floor: number;
  end: number;
  /** False once the exec has ended and `next` is the end of what it wrote. */
  more: boolean;
  /** For who is done with all of the records' data, and only for them: its memory is used again. */
  release?(): void;
}

export interface Probe {
  root: Identity;
  livedMs: number;
  processes: number;
}

export interface ProcessInfo {
  pid: number;
  parent: number;
  uid: number;
  state: string;
  cpuMs: number;
  rssBytes: number;
  name: string;
  commandLine: string;
  execId: string;
}

export interface Stat {
  kind: FileKind;
  sizeBytes: number;
  mode: number;
  uid: number;
  gid: number;
  modifiedAt: number;
  dev: string;
  ino: string;
  /** Of a symbolic link, else empty. */
  target: string;
}

export interface WriteOptions {
  mode?: number;
  /** Make missing parent directories. */
  parents?: boolean;
  uid?: number;
  gid?: number;
}

/** Files of one root. Served by the keeper from inside or by the porter from a jail: the same protocol. */
export interface FileAccess {
  stat(path: string, options: { follow: boolean }, signal: AbortSignal): Promise<Stat>;
  list(
    path: string,
    options: { limit: number },
    signal: AbortSignal,
  ): Promise<{ entries: { name: string; stat: Stat }[]; truncated: boolean }>;
  /** The stat is of the very file that is read. The body must be iterated to its end or returned. */
  read(
    path: string,
    range: { offset: number; length: number | null },
    signal: AbortSignal,
  ): Promise<{ stat: Stat; body: AsyncIterable<Uint8Array> }>;
  /** Atomic: readers see the old content or the new. Nothing is left where the body fails. */
  write(
    path: string,
    body: AsyncIterable<Uint8Array>,
    options: WriteOptions,
    signal: AbortSignal,
  ): Promise<Stat>;
  mkdir(path: string, options: WriteOptions, signal: AbortSignal): Promise<void>;
  remove(path: string, options: { recursive: boolean }, signal: AbortSignal): Promise<void>;
  rename(from: string, to: string, options: { overwrite: boolean }, signal: AbortSignal): Promise<void>;
  chmod(path: string, mode: number, signal: AbortSignal): Promise<void>;
  /** Refuses where something is there. */
  symlink(path: string, target: string, options: WriteOptions, signal: AbortSignal): Promise<void>;
  /** Sets when it was last modified; of a symbolic link its own. */
  touch(path: string, modifiedAt: number, signal: AbortSignal): Promise<void>;
  /**
   * Resolves when no change is missed any more, of the directory or file and, where that is asked for, of all below it.
   * Ends with the signal, or with the link. Must be iterated or returned.
   */
  watch(
    path: string,
    options: { recursive: boolean },
    signal: AbortSignal,
  ): Promise<AsyncIterable<FileChange>>;
}

/** A byte stream to one keeper. Losing it loses nothing: everything it was used for can be asked again on the next one. */
export interface Link {
  readonly keeper: { version: string; bootId: string; startedAt: number };
  /** Resolves once, with why, when the link is over. Never rejects. */
  readonly closed: Promise<string>;
  /** When the last frame came in. */
  readonly lastHeardAt: number;
  readonly files: FileAccess;
  ping(signal: AbortSignal): Promise<void>;
  startExec(order: ExecOrder, signal: AbortSignal): Promise<{ existed: boolean; exec: KeeperExec }>;
  /** Waits up to `waitMs` for something to read. */
  readExec(
    id: ExecId,
    from: { cursor: number; maxBytes: number; waitMs: number },
    signal: AbortSignal,
  ): Promise<JournalSlice>;
  /** Exactly once by offset; `accepted` is how far stdin has got. */
  writeStdin(
    id: ExecId,
    chunk: { offset: number; data: Uint8Array; end: boolean },
    signal: AbortSignal,
  ): Promise<{ accepted: number }>;
  signalExec(id: ExecId, signal: number, abort: AbortSignal): Promise<void>;
  /** Kills the whole tree; the exec then ends as cancelled. */
  cancelExec(id: ExecId, signal: AbortSignal): Promise<void>;
  listExecs(signal: AbortSignal): Promise<KeeperExec[]>;
  /** Drops an ended exec; its journal too, unless that is to be kept for reading from outside. */
  forgetExec(id: ExecId, options: { keepJournal: boolean }, signal: AbortSignal): Promise<void>;
  /** Of an exec that has a terminal. */
  resizeExec(id: ExecId, size: TerminalSize, signal: AbortSignal): Promise<void>;
  /** Called for every exec that ends while the link is up. */
  onExecEnd(listener: (exec: KeeperExec) => void): void;
  /**
   * As `startExec`, and has the command started again when it ends. The id must end with a hyphen and a number. A cancel of the
   * last run ends the row as well, also while it waits. A keeper that can't refuses with `unknown_type`.
   */
  keepExec(
    order: ExecOrder,
    policy: KeepPolicy,
    signal: AbortSignal,
  ): Promise<{ existed: boolean; exec: KeeperExec }>;
  /** The rows that it has, those that are over included until their last run is forgotten. */
  listKept(signal: AbortSignal): Promise<KeptRun[]>;
  /** Called for every run that the keeper begins by itself while the link is up. */
  onExecStart(listener: (exec: KeeperExec) => void): void;
  probe(signal: AbortSignal): Promise<Probe>;
  processes(signal: AbortSignal): Promise<ProcessInfo[]>;
  close(): void;
}
