/** The engine's public API. Its only user is the server. */
import type { Duplex } from "node:stream";
import type {
  AlertKind,
  AlertList,
  AuditReport,
  Checkpoint,
  CheckpointList,
  CreateCheckpoint,
  CreateDrive,
  CreatePreview,
  CreateSandbox,
  Delivery,
  DeliveryList,
  DeliveryState,
  Diagnosis,
  Drive,
  DriveList,
  Event,
  EventList,
  EventType,
  Exec,
  ExecId,
  ExecList,
  FileChange,
  FileList,
  FileSearch,
  FileStat,
  Labels,
  Mount,
  MountDrive,
  MountList,
  OutputStream,
  PreviewId,
  PreviewInfo,
  PreviewTokenInfo,
  Process,
  ProcessList,
  Proof,
  ResourceReport,
  Sandbox,
  SandboxId,
  SandboxList,
  Severity,
  StartExec,
  StartProcess,
  Stats,
  Status,
  SweepReport,
  TerminalSize,
  Unpacked,
  UpdateDrive,
  UpdateSandbox,
  UsageList,
} from "@holdfast/contract";
import type { EventOrder, ImageStore, ProcessInfo } from "./index.ts";
import type { DriveRecord, PreviewHeaders, SandboxRecord } from "./records.ts";

/** One measured value for an alert, at one moment, with a message for people. */
export interface Reading {
  kind: AlertKind;
  /** The measured sandbox, cleanup layer or resource; null if the kind measures only one thing. */
  subject: string | null;
  sandboxId: SandboxId | null;
  /** The value; null if it could not be read. The alert then keeps its state. */
  value: number | null;
  message: string;
}

/**
 * The readings of each kind. A kind that is null or missing could not be read. If a kind was read, a subject without a
 * reading is healthy.
 */
export type Readings = Readonly<Partial<Record<AlertKind, readonly Reading[] | null>>>;

export interface CreateOptions {
  /** If true, the create resolves when the sandbox is proven; if false, as soon as its record is stored. */
  wait: boolean;
  idempotencyKey?: string | undefined;
  /** The id of the caller's API key. Limits per key are counted by this id. */
  owner?: string | null;
  /**
   * If true, limits above what the host has are accepted. Set for clients that choose the same limits for every host.
   */
  beyondHost?: boolean;
  /** Called at each step of the launch, if `wait` is true. */
  onProgress?: ((progress: Progress) => void) | undefined;
  signal: AbortSignal;
}

/** One step of a launch, reported while a create waits. */
export interface Progress {
  /**
   * The step's name: one of `accepted`, `waiting`, `launching`, `files`, `root`, `runtime`, `keeper`, `proving`,
   * `ready`.
   */
  step: string;
  at: number;
}

export interface SandboxApi {
  /**
   * Resolves with a proven sandbox or, without `wait`, a stored one. `existed` is true if an earlier create had created
   * the sandbox.
   */
  create(input: CreateSandbox, options: CreateOptions): Promise<{ sandbox: Sandbox; existed: boolean }>;
  get(ref: string): Promise<Sandbox>;
  /** Returns the environment of the sandbox's execs. It may contain secrets, so the view of a sandbox leaves it out. */
  environment(ref: string): Promise<Readonly<Record<string, string>>>;
  /** Changes labels, environment and lifecycle of a live sandbox. Does not wake the sandbox. */
  update(ref: string, changes: UpdateSandbox): Promise<Sandbox>;
  list(filter: {
    status?: readonly Status[] | undefined;
    labels?: Labels | undefined;
    cursor?: string | undefined;
    limit: number;
  }): Promise<SandboxList>;
  /**
   * Deletes a sandbox in any state. Resolves once its absence is observed (`terminated`), or after `waitMs` while the
   * delete continues (`stopping`). Idempotent.
   */
  remove(
    ref: string,
    options: { graceMs: number; waitMs?: number | undefined; signal: AbortSignal },
  ): Promise<Sandbox>;
  /**
   * Freezes the sandbox's processes in memory; resolves when they are frozen. Does nothing if the sandbox is already
   * paused.
   */
  pause(ref: string, signal: AbortSignal): Promise<Sandbox>;
  /** Thaws a paused sandbox. Resolves when the sandbox is proven. */
  resume(ref: string, signal: AbortSignal): Promise<Sandbox>;
  /**
   * Suspends the sandbox: saves its memory to disk or, if the host can't do that, drops the memory and keeps only the
   * files. Resolves with `standby` when no process of the sandbox is left, or with `suspending` if ending the processes
   * takes too long.
   */
  standby(ref: string, signal: AbortSignal): Promise<Sandbox>;
  /**
   * Wakes a suspended sandbox and resolves when it is proven. Any call that needs the instance wakes the sandbox by
   * itself.
   */
  wake(ref: string, signal: AbortSignal): Promise<Sandbox>;
  /**
   * Replaces the instance by a new one on the same files. Also restarts a failed sandbox. Resolves when the sandbox is
   * proven.
   */
  restart(ref: string, signal: AbortSignal): Promise<Sandbox>;
  /** Runs a new proof. */
  verify(ref: string, signal: AbortSignal): Promise<Proof>;
  processes(ref: string, signal: AbortSignal): Promise<ProcessInfo[]>;
  /** Reports the current resource usage and its history of the last minutes. Does not wake the sandbox. */
  resources(ref: string, signal: AbortSignal): Promise<ResourceReport>;
  /** Lists the last known usage of all live sandboxes in order of creation, without a new measurement. */
  usage(): UsageList;
  /** Diagnoses the sandbox by observing it for at most `windowMs`. Does not wake it and needs no link. */
  diagnosis(ref: string, options: { windowMs?: number | undefined }, signal: AbortSignal): Promise<Diagnosis>;
}

export interface AlertApi {
  /** Lists firing alerts and, with `cleared`, recently cleared ones. */
  list(filter: { cleared: boolean }): Promise<AlertList>;
  deliveries(filter: {
    state?: Delivery["state"] | undefined;
    cursor?: string | undefined;
    limit: number;
  }): Promise<DeliveryList>;
  /**
   * Retries a delivery in the state `dead`, in which the server makes no further attempts by itself. All other dead
   * deliveries of the same alert are retried too. The back-off starts again with its first value. A delivery in another
   * state is returned unchanged.
   */
  redeliver(id: string): Promise<Delivery>;
  /** Returns the figures that the metrics endpoint exports. */
  figures(): Promise<AlertFigures>;
}

export interface AlertFigures {
  /** When alerts were last evaluated; null before the first evaluation. */
  evaluatedAt: number | null;
  firing: readonly { kind: AlertKind; severity: Severity; count: number }[];
  /** The readings of the last evaluation. A kind that could not be read is null. */
  readings: Readings;
  deliveries: Readonly<Record<DeliveryState, number>>;
}

export interface CheckpointApi {
  /**
   * Saves the files as of one moment, and the memory too if the host supports that. Resolves when the sandbox is proven
   * again.
   */
  create(ref: string, input: CreateCheckpoint, signal: AbortSignal): Promise<Checkpoint>;
  /** Lists the checkpoints, oldest first. Does not wake the sandbox. */
  list(ref: string): Promise<CheckpointList>;
  /** Deletes the checkpoint with the id or name `which`. */
  remove(ref: string, which: string, signal: AbortSignal): Promise<void>;
}

export interface DriveApi {
  /** Resolves when the drive can be mounted. `existed` is true if an earlier create made the drive. */
  create(
    input: CreateDrive,
    options: { owner?: string | null; signal: AbortSignal },
  ): Promise<{ drive: Drive; existed: boolean }>;
  /** Returns the drive with a new measurement of its disk usage or, if measuring takes too long, with the last one. */
  get(ref: string, signal: AbortSignal): Promise<Drive>;
  list(filter: {
    labels?: Labels | undefined;
    cursor?: string | undefined;
    limit: number;
  }): Promise<DriveList>;
  /** Changes the drive's labels. */
  update(ref: string, changes: UpdateDrive, signal: AbortSignal): Promise<Drive>;
  /**
   * Resolves with null once nothing of the drive is left. If the removal takes too long, resolves with the drive in
   * status `deleting`, and the removal continues.
   */
  remove(ref: string, options: { force: boolean; signal: AbortSignal }): Promise<Drive | null>;
}

export interface MountApi {
  /** Lists the mounts. Does not wake the sandbox. */
  list(ref: string): Promise<MountList>;
  /** Resolves when the mount is proven. An identical existing mount is established and proven again. */
  mount(ref: string, input: MountDrive, signal: AbortSignal): Promise<{ mount: Mount; existed: boolean }>;
  /** Resolves when the mount is observed absent. */
  unmount(ref: string, path: string, signal: AbortSignal): Promise<void>;
}

export interface OutputOptions {
  cursor?: string | undefined;
  follow: boolean;
  /** Limits the output to this stream. The filter does not change the cursors. */
  stream?: OutputStream | undefined;
  /**
   * Has an effect only with `follow`. True: the command waits for a slow reader. False: output that the reader has not
   * taken may be dropped. Default: true, except for a command on a terminal and for a run of a named process.
   */
  hold?: boolean | undefined;
  /**
   * Returns whether the reader has consumed the data of all records so far. If so, the memory of the data is reused.
   */
  isTaken?: () => boolean;
  signal: AbortSignal;
}

/** One record of an output stream. Its data is raw bytes; the server encodes them for the client. */
export type OutputRecord =
  | { type: "start" | "end"; cursor: string; exec: Exec }
  | { type: OutputStream; cursor: string; at: number; data: Uint8Array }
  | { type: "keepalive"; cursor: string; suspended?: boolean };

export interface ExecApi {
  /** Resolves once the exec has started or ended. `followed` is true if an earlier request created the exec. */
  start(
    ref: string,
    input: StartExec,
    options: {
      idempotencyKey?: string | undefined;
      /**
       * Whether the response is delayed until the exec has ended or a second has passed. If so, and if there is no
       * idempotency key, the record of the start must survive a crash of the server but may be lost in a crash of the
       * host.
       */
      awaited?: boolean;
      /**
       * Whether the caller is expected to follow the output from the start. If so, no output is dropped for a limited
       * time, until the caller begins to read; the command waits if necessary.
       */
      expectsReader?: boolean;
      signal: AbortSignal;
    },
  ): Promise<{ exec: Exec; followed: boolean }>;
  get(id: string): Promise<Exec>;
  /** Resolves with the exec, its stdout and its stderr once the exec has ended, and at the latest after `waitMs`. */
  wait(id: string, options: { waitMs: number; signal: AbortSignal }): Promise<Exec>;
  list(ref: string, page: { cursor?: string | undefined; limit: number }): Promise<ExecList>;
  /**
   * Streams a `start` record, the output from the cursor on, keepalives, and an `end` record once the exec has ended.
   * Without `follow` the stream stops at the present end of the output. With `follow` the stream stops without an `end`
   * record after `streamMaxMs`; the reader then reconnects with its last cursor.
   */
  output(id: string, options: OutputOptions): AsyncIterable<OutputRecord>;
  /**
   * Adds one to the count of readers that the server has disconnected because they accepted no data, or did not
   * respond, for too long.
   */
  readerWedged(id: string): void;
  /**
   * Writes data to stdin. With an offset, the data is written exactly once however often the call is repeated. Without
   * an offset, every call appends its data.
   */
  writeStdin(
    id: string,
    chunk: { offset: number | null; data: Uint8Array; end: boolean },
    signal: AbortSignal,
  ): Promise<{ accepted: number }>;
  /** Resizes the exec's terminal; an exec without a terminal is refused. */
  resize(id: string, size: TerminalSize, signal: AbortSignal): Promise<Exec>;
  signal(id: string, signal: string, abort: AbortSignal): Promise<Exec>;
  /** Kills all processes of the exec and waits for its end. */
  cancel(id: string, signal: AbortSignal): Promise<Exec>;
}

export interface ProcessApi {
  /**
   * Starts a process. Resolves when the process is ready, has missed its readiness deadline, or is over, and at the
   * latest after `waitMs`. If the name belongs to a process that is not over, an identical request returns that
   * process, and any other request is a conflict.
   */
  start(
    ref: string,
    input: StartProcess,
    options: { waitMs?: number | undefined; signal: AbortSignal },
  ): Promise<{ process: Process; followed: boolean }>;
  /** Lists the processes, oldest first. Does not wake the sandbox. */
  list(ref: string): Promise<ProcessList>;
  /** Returns the process with the name or id `which`. */
  get(ref: string, which: string): Promise<Process>;
  /** Waits for an existing process. Resolves under the same conditions as `start`. */
  wait(ref: string, which: string, options: { waitMs: number; signal: AbortSignal }): Promise<Process>;
  /**
   * Ends the process: its current run and all restarts. Resolves when the process has stopped. Wakes the sandbox.
   * Idempotent.
   */
  stop(ref: string, which: string, signal: AbortSignal): Promise<Process>;
  /**
   * Cancels the current run, if any, and starts the next run at once, even if the process is over. Resolves under the
   * same conditions as `start`.
   */
  restart(
    ref: string,
    which: string,
    options: { waitMs?: number | undefined; signal: AbortSignal },
  ): Promise<Process>;
  /** Lists the runs of a process, newest first. Runs are execs, and are kept as long as other execs. */
  runs(ref: string, which: string, page: { cursor?: string | undefined; limit: number }): Promise<ExecList>;
}

export interface ReadOptions {
  /**
   * Whether a read may wake a suspended sandbox. Reads are served from the sandbox's disk if possible. If a path exists
   * only in a running instance, the read wakes the sandbox; with `wake: false`, the read is refused.
   */
  wake: boolean;
}

export interface FileApi {
  stat(ref: string, path: string, options: ReadOptions, signal: AbortSignal): Promise<FileStat>;
  list(
    ref: string,
    path: string,
    options: ReadOptions & { limit: number },
    signal: AbortSignal,
  ): Promise<FileList>;
  read(
    ref: string,
    path: string,
    options: ReadOptions & { offset: number; length: number | null },
    signal: AbortSignal,
  ): Promise<{ stat: FileStat; body: AsyncIterable<Uint8Array> }>;
  write(
    ref: string,
    path: string,
    body: AsyncIterable<Uint8Array>,
    options: { mode?: number | undefined; parents: boolean },
    signal: AbortSignal,
  ): Promise<FileStat>;
  mkdir(
    ref: string,
    path: string,
    options: { mode?: number | undefined; parents: boolean },
    signal: AbortSignal,
  ): Promise<FileStat>;
  remove(ref: string, path: string, options: { recursive: boolean }, signal: AbortSignal): Promise<void>;
  move(
    ref: string,
    from: string,
    to: string,
    options: { overwrite: boolean },
    signal: AbortSignal,
  ): Promise<FileStat>;
  /** Searches below a directory by name and content. Does not follow symbolic links. Stops early at its limits. */
  search(
    ref: string,
    path: string,
    options: ReadOptions & SearchOptions,
    signal: AbortSignal,
  ): Promise<FileSearch>;
  /** Streams a directory or file as a tar archive. The archive contains only files, directories and symbolic links. */
  pack(
    ref: string,
    path: string,
    options: ReadOptions,
    signal: AbortSignal,
  ): Promise<AsyncIterable<Uint8Array>>;
  /**
   * Extracts a tar archive into a directory, which is created if it does not exist. Refuses archives with forbidden
   * entries.
   */
  unpack(ref: string, path: string, body: AsyncIterable<Uint8Array>, signal: AbortSignal): Promise<Unpacked>;
  /**
   * Watches a file or directory. Resolves when the watch is established; every change from then on is reported. The
   * watch lasts until the signal aborts or the link is lost, and keeps the sandbox awake.
   */
  watch(
    ref: string,
    path: string,
    options: { recursive: boolean },
    signal: AbortSignal,
  ): Promise<AsyncIterable<FileChange>>;
}

export interface SearchOptions {
  /** A glob. It matches file names or, if it contains a slash, paths relative to the directory. */
  name?: string | undefined;
  /** Text that a line must contain. */
  content?: string | undefined;
  /** Whether `content` is a regular expression. */
  regex?: boolean | undefined;
  ignoreCase?: boolean | undefined;
  /** Number of lines returned before and after each matching line. */
  contextLines?: number | undefined;
  /** Names of directories to skip. */
  exclude?: readonly string[] | undefined;
  limit: number;
}

export interface EventQuery {
  ref?: string | undefined;
  execId?: ExecId | undefined;
  /** A drive, by name or id. */
  drive?: string | undefined;
  types?: readonly EventType[] | undefined;
  /** Selects events with `since` <= time < `until`, in milliseconds since the epoch. */
  since?: number | undefined;
  until?: number | undefined;
  /** The `seq` of the last event that the caller has seen. */
  cursor?: string | undefined;
}

export interface EventPage {
  events: readonly Event[];
  /**
   * The position after the last event examined for this page, whether it matched or not. The next page continues from
   * here.
   */
  cursor: string;
}

/** A connection to a port, with the callbacks by which its user reports activity. */
export interface PortConnection {
  readonly sandboxId: SandboxId;
  /** The stream of bytes. Fails with `StreamCut` if the connection is cut. The caller must destroy it when done. */
  readonly bytes: Duplex;
  /**
   * Reports that the request for the port was answered. From then on the sandbox stays awake only while there is
   * traffic.
   */
  settled(): void;
  /** Reports traffic in either direction. */
  used(): void;
}

export interface PortApi {
  /** Number of open connections. */
  readonly open: number;
  /**
   * Resolves when the program on the port has accepted the connection. Wakes the sandbox. The signal also ends an open
   * connection.
   */
  connect(ref: string, port: number, signal: AbortSignal): Promise<PortConnection>;
}

/** The access that a preview grants to the bearer of a token or, if the preview is public, to everyone. */
export interface Grant {
  previewId: PreviewId;
  sandboxId: SandboxId;
  port: number;
  expiresAt: number | null;
  /** The response headers that the preview sets. */
  headers: PreviewHeaders;
  /** Aborted when the access expires or is revoked. Connections made with the grant are then cut. */
  signal: AbortSignal;
}

export interface PreviewApi {
  /**
   * Creates a preview. `token` is null for a public preview, and if the option `token: false` was given. If a preview
   * is removed and another one is created with the same name, the new one has the same id and therefore the same URLs,
   * but the tokens of the removed preview stay invalid.
   */
  create(
    ref: string,
    input: CreatePreview,
    options?: { token?: boolean; headers?: PreviewHeaders | undefined },
  ): Promise<{ preview: PreviewInfo; token: string | null }>;
  /** Lists the previews, oldest first. Like all methods of this interface, it does not wake the sandbox. */
  list(ref: string): Promise<PreviewInfo[]>;
  get(ref: string, name: string): Promise<PreviewInfo>;
  /** Changes a preview. A change of the port revokes all tokens of the preview. */
  update(
    ref: string,
    name: string,
    changes: {
      port?: number | undefined;
      public?: boolean | undefined;
      ttlMs?: number | null | undefined;
      headers?: PreviewHeaders | undefined;
    },
  ): Promise<PreviewInfo>;
  remove(ref: string, name: string): Promise<void>;
  createToken(
    ref: string,
    name: string,
    options: { ttlMs?: number | undefined },
  ): Promise<{ info: PreviewTokenInfo; token: string }>;
  tokens(ref: string, name: string): Promise<PreviewTokenInfo[]>;
  /**
   * Returns the text of an existing token again. This reveals nothing new, because the caller could create another
   * token at any time.
   */
  token(ref: string, name: string, id: string): Promise<string>;
  removeToken(ref: string, name: string, id: string): Promise<void>;
  /** Returns the access that a token grants. Refuses every kind of invalid token with the same `preview_denied`. */
  admit(token: string): Grant;
  /**
   * Returns the access that a public preview grants to everyone; null if the preview is private, expired or unknown.
   */
  admitPublic(id: PreviewId): Grant | null;
  /**
   * Returns the access to a public port, for a request that names no preview; null if the port has no public preview.
   * The port is public as long as it has a public preview. If it has several, the newest one grants the access.
   */
  admitPublicPort(sandboxId: SandboxId, port: number): Grant | null;
  /** Returns the headers that a preview sets; none for an unknown or expired preview. */
  headersOf(id: PreviewId): PreviewHeaders;
  /** Returns the preview; null if it does not exist or has expired. */
  byId(id: string): PreviewInfo | null;
}

export interface EngineApi {
  readonly sandboxes: SandboxApi;
  readonly checkpoints: CheckpointApi;
  readonly execs: ExecApi;
  readonly processes: ProcessApi;
  readonly files: FileApi;
  readonly mounts: MountApi;
  readonly drives: DriveApi;
  /** Files of drives, served without a sandbox. Each `ref` is the name or id of a drive. */
  readonly driveFiles: FileApi;
  readonly ports: PortApi;
  readonly previews: PreviewApi;
  readonly images: ImageStore;
  readonly alerts: AlertApi;
  /** Lists events, oldest first by default. */
  events(filter: EventQuery & { order?: EventOrder | undefined; limit: number }): Promise<EventList>;
  /**
   * Streams matching events page by page, and then new events as they happen, until the signal aborts or `until` has
   * passed. The stream starts at the cursor or at `since`; without either, it starts now. The first page comes at once:
   * it is empty, and its cursor is the start of the stream. Later empty pages are keepalives. Fails with
   * `events_dropped` if retention has deleted events that were not read yet, so that a reader never misses events
   * unnoticed.
   */
  followEvents(filter: EventQuery, signal: AbortSignal): AsyncIterable<EventPage>;
  stats(): Promise<Stats>;
  /**
   * Runs an audit, which compares records with the resources on the host in both directions. Concurrent callers share
   * one audit.
   */
  audit(): Promise<AuditReport>;
  /** Returns the last audit; null before the first one. */
  lastAudit(): AuditReport | null;
  /** Runs all cleanup layers. With `emergency`, it also deletes disposable sandboxes and suspends idle ones. */
  cleanup(options: { dryRun: boolean; emergency: boolean }): Promise<SweepReport>;
  /**
   * Runs `copy` while the processes of the given running sandboxes are frozen, so that nothing changes their files.
   * Calls to the sandboxes are held meanwhile. If one of the sandboxes is not running or can't be frozen, rejects
   * without running `copy`.
   */
  copyWhileFrozen<Result>(
    ids: readonly SandboxId[],
    copy: (signal: AbortSignal) => Promise<Result>,
    signal: AbortSignal,
  ): Promise<Result>;
  /** Stores a sandbox in standby whose files the caller has already put in place, and serves it from then on. */
  adoptSandbox(record: SandboxRecord): Promise<void>;
  /** Stores a drive whose files the caller has already put in place, and serves it from then on. */
  adoptDrive(record: DriveRecord): Promise<void>;
  /** Returns the reasons why the engine does not accept work; empty if it does. */
  unreadiness(): string[];
  /** Recovers the sandboxes of the previous server, then accepts work. */
  start(): Promise<void>;
  /** Stops accepting work and closes the links. Instances keep running. */
  stop(): Promise<void>;
}
