/**
 * What the engine needs of the world. It knows nothing else: time, ids, the database, whatever runs instances and the
 * link into them all come through here, so that the same engine runs on a machine and in the simulator.
 */
import type {
  AttemptId,
  Cause,
  Counter,
  Dispatched,
  Environment,
  EventType,
  ExecId,
  FileKind,
  Image,
  InstallationId,
  Labels,
  Resources,
  SandboxId,
} from "@holdfast/contract";
import type { ExecRecord, SandboxRecord } from "./records.ts";

export interface Clock {
  /** Milliseconds since the epoch. */
  now(): number;
  /** Resolves after `ms`; rejects with the signal's reason when it is aborted first. */
  sleep(ms: number, signal?: AbortSignal): Promise<void>;
  /** Aborts `ms` from now; `clear` lets the timer go. */
  deadline(ms: number, why: string): { signal: AbortSignal; clear(): void };
}

export interface Ids {
  sandbox(): SandboxId;
  exec(): ExecId;
  attempt(): AttemptId;
  /** A made-up name for a sandbox whose creator gave none. */
  name(): string;
  /** Uniform in [0, 1), for jitter. */
  random(): number;
}

type Fields = Record<string, unknown>;
export interface Log {
  debug(fields: Fields, message: string): void;
  info(fields: Fields, message: string): void;
  warn(fields: Fields, message: string): void;
  error(fields: Fields, message: string): void;
  child(fields: Fields): Log;
}

// ── Store ────────────────────────────────────────────────────────────────────────────────────────────────────────

export interface NewEvent {
  at: number;
  type: EventType;
  sandboxId?: SandboxId | undefined;
  execId?: ExecId | undefined;
  generation?: number | undefined;
  message: string;
  data?: Record<string, unknown>;
}

export interface StoredEvent {
  seq: number;
  at: number;
  type: EventType;
  sandboxId: SandboxId | null;
  execId: ExecId | null;
  generation: number | null;
  message: string;
  data: Record<string, unknown>;
}

export interface Idempotency {
  /** `sandbox` or `exec:<sandbox id>`: the same key may be used for different kinds of things. */
  scope: string;
  key: string;
  /** Of the request's content; the same key with another one is a conflict. */
  fingerprint: string;
}

export type Change =
  | { kind: "sandbox.insert"; record: SandboxRecord; idempotency?: Idempotency | undefined }
  /** Written only over `expectedRevision`; the stored revision becomes `record.revision`. */
  | { kind: "sandbox.update"; record: SandboxRecord; expectedRevision: number }
  | { kind: "sandbox.touch"; id: SandboxId; at: number }
  | { kind: "exec.insert"; record: ExecRecord; idempotency?: Idempotency | undefined }
  /** Written only over a record that is not terminal yet. */
  | { kind: "exec.end"; record: ExecRecord };

export interface Commit {
  changes: readonly Change[];
  events?: readonly NewEvent[];
  counters?: Partial<Record<Counter, number>>;
}

/** The precondition of a change did not hold; nothing of its commit was written. */
export class StoreConflict extends Error {
  readonly reason:
    | "name_taken"
    | "exec_exists"
    | "stale_revision"
    | "already_terminal"
    | "idempotency_key_used";
  constructor(reason: StoreConflict["reason"]) {
    super(`store conflict: ${reason}`);
    this.name = "StoreConflict";
    this.reason = reason;
  }
}

export interface SandboxFilter {
  /** Live ones only, or those that are gone too. */
  includeGone?: boolean;
  labels?: Labels | undefined;
  /** Ids after this one, in the order of creation. */
  after?: SandboxId | undefined;
  limit: number;
}

export interface EventFilter {
  sandboxId?: SandboxId | undefined;
  execId?: ExecId | undefined;
  types?: readonly EventType[] | undefined;
  /** Events with a larger seq than this. */
  after?: number | undefined;
  limit: number;
}

export interface Store {
  /** All of it or nothing, durable when it resolves. */
  commit(commit: Commit): Promise<void>;

  sandbox(id: SandboxId): Promise<SandboxRecord | null>;
  /** The one that holds the name now. */
  sandboxByName(name: string): Promise<SandboxRecord | null>;
  sandboxes(filter: SandboxFilter): Promise<SandboxRecord[]>;
  /** Every record that is not gone: what a starting engine has to look at. */
  liveSandboxes(): Promise<SandboxRecord[]>;

  exec(id: ExecId): Promise<ExecRecord | null>;
  /** Newest first, before the given one. */
  execs(sandboxId: SandboxId, page: { before?: ExecId | undefined; limit: number }): Promise<ExecRecord[]>;
  /** Every exec without an outcome. */
  openExecs(): Promise<ExecRecord[]>;

  /** What was made under an idempotency key. */
  idempotent(scope: string, key: string): Promise<{ target: string; fingerprint: string } | null>;

  events(filter: EventFilter): Promise<StoredEvent[]>;
  counters(): Promise<Record<Counter, number>>;
}

// ── Driver ───────────────────────────────────────────────────────────────────────────────────────────────────────

/** Where one instance physically is. A pid counts only with its start time and within its boot of the host. */
export interface Instance {
  sandboxId: SandboxId;
  generation: number;
  pid: number;
  startTime: string;
  hostBootId: string;
  /** Version of the keeper binary that runs in it. */
  keeperVersion: string;
  /** What its keeper called itself before any command had run: whoever answers with another name is an impostor. */
  keeperBootId?: string;
}

export interface LaunchOrder {
  sandboxId: SandboxId;
  name: string;
  generation: number;
  image: string;
  resources: Resources;
}

export interface Capacity {
  cpus: number;
  memoryTotalBytes: number;
  memoryFreeBytes: number;
  diskTotalBytes: number;
  diskFreeBytes: number;
}

export interface Identity {
  dev: string;
  ino: string;
}

/** What a driver saw. `unknown` is never taken for `absent`. */
export type Observation =
  | {
      seen: "present";
      at: number;
      /** Of PID 1. A different start time than the lease's is a different process. */
      pid: number;
      startTime: string;
      state: "running" | "stopped" | "frozen";
      /** Device and inode of the root as the host sees it; null where it is not mounted. */
      root: Identity | null;
      oomKills: number;
      /** Each names something that keeps this instance from serving, with codes such as `root_unmounted`, `keeper_stopped`. */
      problems: Cause[];
    }
  | { seen: "absent"; at: number; leftovers: string[] }
  | { seen: "unknown"; at: number; why: string };

/** Something physical that carries our marker. */
export interface Found {
  sandboxId: SandboxId;
  /** Names for people: "process 4711", "cgroup memory", "mount", "directory". */
  things: string[];
}

export interface Driver {
  readonly name: string;
  capacity(signal: AbortSignal): Promise<Capacity>;
  /** Starts an instance with its markers. On any failure the caller stops and destroys; launch itself may leave parts. */
  launch(order: LaunchOrder, signal: AbortSignal): Promise<Instance>;
  /** Takes an instance that an earlier server launched under its wing again; null where it is gone. */
  recover(instance: Instance, signal: AbortSignal): Promise<Instance | null>;
  connect(instance: Instance, signal: AbortSignal): Promise<Link>;
  /** One cheap pass over all the given ones. Never wakes and never touches what runs inside. */
  observe(ids: readonly SandboxId[], signal: AbortSignal): Promise<Map<SandboxId, Observation>>;
  list(signal: AbortSignal): Promise<Found[]>;
  freeze(id: SandboxId, signal: AbortSignal): Promise<void>;
  thaw(id: SandboxId, signal: AbortSignal): Promise<void>;
  /** Ends every process of the instance, frozen or not, and says what it then saw. Idempotent. */
  stop(id: SandboxId, options: { graceMs: number }, signal: AbortSignal): Promise<Observation>;
  /** Removes all else: mounts, cgroups, runtime state, files. Resolves only when nothing is left. Idempotent. */
  destroy(id: SandboxId, signal: AbortSignal): Promise<void>;
  close(): Promise<void>;
}

export interface ImportSource {
  /** A tar archive, as a stream of bytes. */
  tar: AsyncIterable<Uint8Array>;
}

export interface Images {
  list(): Promise<Image[]>;
  get(name: string): Promise<Image | null>;
  import(name: string, source: ImportSource, signal: AbortSignal): Promise<Image>;
  remove(name: string, signal: AbortSignal): Promise<void>;
}

// ── Link ─────────────────────────────────────────────────────────────────────────────────────────────────────────

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
    | "reserved_path";
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
  /** Drops an ended exec and its journal. */
  forgetExec(id: ExecId, signal: AbortSignal): Promise<void>;
  /** Called for every exec that ends while the link is up. */
  onExecEnd(listener: (exec: KeeperExec) => void): void;
  probe(signal: AbortSignal): Promise<Probe>;
  processes(signal: AbortSignal): Promise<ProcessInfo[]>;
  close(): void;
}

export interface Ports {
  installation: InstallationId;
  clock: Clock;
  ids: Ids;
  log: Log;
  store: Store;
  driver: Driver;
  images: Images;
}
