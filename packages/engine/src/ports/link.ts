/** The link port: the connection to the keeper of an instance, as the engine needs it. */
import type { Dispatched, Environment, ExecId, FileChange, FileKind, TerminalSize } from "@holdfast/contract";
import type { Identity } from "./driver.ts";

/**
 * The keeper refused a request. If the kernel refused it, `errno` is the kernel's name of the error, such as ENOENT.
 */
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
  /** The lowest readable cursor if the reason is `below_floor`; otherwise null. */
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
 * A stream to a port was cut before both of its directions had ended. Either the process at the port reset the
 * connection or is gone, or the sandbox was stopped, suspended or taken over by a later generation. The data read from
 * the stream is incomplete.
 */
export class StreamCut extends Error {
  /** The error code of a connection that was reset. */
  readonly code = "ECONNRESET";
  constructor(why: string) {
    super(why);
    this.name = "StreamCut";
  }
}

/** The link was lost before the answer arrived. The keeper may have carried out the request. */
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
  /** A name from the image's passwd file, or `uid[:gid]`; empty for the default user. */
  user: string;
  /** 0 means no timeout. */
  timeoutMs: number;
  /** Whether stdin will be written to. If not, stdin is /dev/null. */
  stdin: boolean;
  /** The terminal's size; null if the command gets pipes. */
  tty: TerminalSize | null;
  journalCapBytes: number;
  /** SHA-256 of all fields above, in hex. It distinguishes a repeated start from a conflicting one. */
  digest: string;
}

/** An exec as the keeper knows it. */
export interface KeeperExec {
  id: ExecId;
  state: "running" | "exited" | "timed_out" | "cancelled";
  pid: number;
  /** The exit code; -1 if a signal ended the command. */
  exitCode: number;
  /** The signal that ended the command; 0 if the command exited. */
  signal: number;
  /** Why the command could not be started: `cwd`, `user`, `not_found`, `not_executable`; empty if it was started. */
  failure: string;
  startedAt: number;
  endedAt: number;
  /** Cursor of the first readable byte. */
  journalFloor: number;
  /** Cursor of the journal's present end or, once the exec has ended, of the end of its output. */
  journalEnd: number;
  digest: string;
}

/**
 * How a keeper restarts a command on its own. `always`: after every run except a cancelled one. `failure`: after every
 * run except a cancelled one and one that exited with 0. The next run begins after `backoffMs`, not counting pauses and
 * standby. This delay doubles with every consecutive restart, up to a minute. A run that lasted a minute resets the
 * count of consecutive restarts. After `max` consecutive restarts the keeper gives up.
 */
export interface SupervisePolicy {
  on: "failure" | "always";
  max: number;
  backoffMs: number;
}

/**
 * A supervised command as the keeper knows it: a sequence of runs. Each run is an exec of its own, with an outcome and
 * a journal. Run ids end with a hyphen and a number, which grows by one with each run.
 */
export interface SupervisedRun {
  /** Id of the last run. */
  execId: ExecId;
  /**
   * `waiting`: the next run is due later. `done`: the policy requires no further run. `stopped`: a cancel ended the
   * command. `given_up`: there were too many restarts.
   */
  state: "running" | "waiting" | "done" | "stopped" | "given_up";
  /** Number of consecutive restarts so far. */
  restarts: number;
  /** When the next run is due; null unless the state is `waiting`. */
  nextAt: number | null;
}

export interface JournalRecord {
  stream: "stdout" | "stderr";
  at: number;
  /** The cursor after this record. */
  cursor: number;
  data: Uint8Array;
}

export interface JournalSlice {
  records: JournalRecord[];
  /** The cursor for the next read. */
  next: number;
  floor: number;
  end: number;
  /** Whether a further read may return more: false once the exec has ended and `next` is the end of its output. */
  more: boolean;
  /** Frees the memory of the records for reuse. Call this only when all of their data has been consumed. */
  release?(): void;
}

export interface Probe {
  root: Identity;
  /** How long the keeper has run, not counting pauses and standby. */
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
  /** Target of a symbolic link; empty for other kinds. */
  target: string;
}

export interface WriteOptions {
  mode?: number;
  /** Whether to create missing parent directories. */
  parents?: boolean;
  uid?: number;
  gid?: number;
}

/**
 * Access to the files below one root directory. Either the keeper serves the files from inside the sandbox, or the
 * porter serves them from a jail on the host, over the same protocol.
 */
export interface FileAccess {
  stat(path: string, options: { follow: boolean }, signal: AbortSignal): Promise<Stat>;
  list(
    path: string,
    options: { limit: number },
    signal: AbortSignal,
  ): Promise<{ entries: { name: string; stat: Stat }[]; truncated: boolean }>;
  /**
   * Reads a file. The returned stat describes exactly the file that is read. The caller must either iterate the body to
   * its end or call its `return`.
   */
  read(
    path: string,
    range: { offset: number; length: number | null },
    signal: AbortSignal,
  ): Promise<{ stat: Stat; body: AsyncIterable<Uint8Array> }>;
  /**
   * Writes a file atomically: readers see either the old content or the new one. If the body fails, nothing is left
   * behind.
   */
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
  /** Creates a symbolic link. Refuses if the path exists. */
  symlink(path: string, target: string, options: WriteOptions, signal: AbortSignal): Promise<void>;
  /** Sets the modification time. For a symbolic link, sets the time of the link itself. */
  touch(path: string, modifiedAt: number, signal: AbortSignal): Promise<void>;
  /**
   * Watches a directory or file and, with `recursive`, everything below it. Resolves once the watch is in place: every
   * later change will be reported. The watch ends with the signal or the link. The caller must either iterate the
   * result to its end or call its `return`.
   */
  watch(
    path: string,
    options: { recursive: boolean },
    signal: AbortSignal,
  ): Promise<AsyncIterable<FileChange>>;
}

/** A connection to one keeper. Losing a link loses no data, because every request can be repeated on the next link. */
export interface Link {
  readonly keeper: { version: string; bootId: string; startedAt: number };
  /** Resolves with the reason when the link has ended. Never rejects. */
  readonly closed: Promise<string>;
  /** When the last frame was received. */
  readonly lastReceivedAt: number;
  readonly files: FileAccess;
  ping(signal: AbortSignal): Promise<void>;
  /**
   * Makes the keeper end its sandbox after `remainingMs`, unless a link is up at that time; null removes the deadline.
   * Pauses and standby do not count. A keeper of an older version ignores this request.
   */
  setDeadline(remainingMs: number | null, signal: AbortSignal): Promise<void>;
  startExec(order: ExecOrder, signal: AbortSignal): Promise<{ existed: boolean; exec: KeeperExec }>;
  /** Reads output from a cursor. If there is no output yet, waits up to `waitMs` for it. */
  readExec(
    id: ExecId,
    from: { cursor: number; maxBytes: number; waitMs: number },
    signal: AbortSignal,
  ): Promise<JournalSlice>;
  /**
   * Holds the output from `cursor` on for `leaseMs`, not counting pauses and standby, and replaces the exec's earlier
   * hold. When the journal reaches its cap, the keeper makes the command wait instead of dropping held output. A lease
   * of 0 ends the hold. Resolves to false if the keeper is too old to hold output.
   */
  holdExec(id: ExecId, hold: { cursor: number; leaseMs: number }, signal: AbortSignal): Promise<boolean>;
  /**
   * Writes to stdin. `offset` is the position of `data` in the whole input, so that each byte is delivered exactly
   * once. `accepted` is the offset up to which the keeper has accepted input.
   */
  writeStdin(
    id: ExecId,
    chunk: { offset: number; data: Uint8Array; end: boolean },
    signal: AbortSignal,
  ): Promise<{ accepted: number }>;
  signalExec(id: ExecId, signal: number, abort: AbortSignal): Promise<void>;
  /** Kills the command's whole process tree. The exec then ends as cancelled. */
  cancelExec(id: ExecId, signal: AbortSignal): Promise<void>;
  listExecs(signal: AbortSignal): Promise<KeeperExec[]>;
  /**
   * Makes the keeper forget an ended exec. The exec's journal is removed too, unless `keepJournal` is set. A kept
   * journal stays on disk and can be read from outside.
   */
  forgetExec(id: ExecId, options: { keepJournal: boolean }, signal: AbortSignal): Promise<void>;
  /** Resizes the terminal of an exec that has one. */
  resizeExec(id: ExecId, size: TerminalSize, signal: AbortSignal): Promise<void>;
  /** Registers a listener, which is called for every exec that ends while the link is up. */
  onExecEnd(listener: (exec: KeeperExec) => void): void;
  /**
   * Like `startExec`, but the keeper restarts the command as the policy says. The id must end with a hyphen and a
   * number. A cancel of the last run also ends the supervision, even between two runs. A keeper that can't supervise
   * commands refuses with `unknown_type`.
   */
  superviseExec(
    order: ExecOrder,
    policy: SupervisePolicy,
    signal: AbortSignal,
  ): Promise<{ existed: boolean; exec: KeeperExec }>;
  /**
   * Lists the keeper's supervised commands. A command that will not run again stays in the list until its last run is
   * forgotten.
   */
  listSupervised(signal: AbortSignal): Promise<SupervisedRun[]>;
  /** Registers a listener, which is called for every run that the keeper starts on its own while the link is up. */
  onExecStart(listener: (exec: KeeperExec) => void): void;
  probe(signal: AbortSignal): Promise<Probe>;
  processes(signal: AbortSignal): Promise<ProcessInfo[]>;
  close(): void;
}
