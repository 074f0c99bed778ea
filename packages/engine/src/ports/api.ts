/** What the engine offers. The server, and nothing else, is written against this. */
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
import type { Readings } from "./alert-rules.ts";
import type { EventOrder, Images, ProcessInfo } from "./ports.ts";

export interface CreateOptions {
  /** False: answer as soon as the record is stored. */
  wait: boolean;
  idempotencyKey?: string | undefined;
  /** The id of the key that asks; caps per key count by it. */
  owner?: string | null;
  /** Called at each step of a launch that is waited for. */
  onProgress?: ((progress: Progress) => void) | undefined;
  signal: AbortSignal;
}

/** A step on the way to a proven sandbox. */
export interface Progress {
  /** `accepted`, `waiting`, `launching`, `files`, `root`, `runtime`, `keeper`, `proving`, `ready`. */
  step: string;
  at: number;
}

export interface SandboxApi {
  /** Resolves with a proven sandbox (or, without `wait`, a stored one). `existed` tells 200 from 201. */
  create(input: CreateSandbox, options: CreateOptions): Promise<{ sandbox: Sandbox; existed: boolean }>;
  get(ref: string): Promise<Sandbox>;
  /** Labels, environment and lifecycle of one that lives, from now on. Wakes nobody. */
  update(ref: string, changes: UpdateSandbox): Promise<Sandbox>;
  list(filter: {
    status?: readonly Status[] | undefined;
    labels?: Labels | undefined;
    cursor?: string | undefined;
    limit: number;
  }): Promise<SandboxList>;
  /** From any state. `terminated` once absence was observed, `stopping` when that takes longer than `waitMs`. Idempotent. */
  remove(
    ref: string,
    options: { graceMs: number; waitMs?: number | undefined; signal: AbortSignal },
  ): Promise<Sandbox>;
  /** Freezes it in memory. Resolves when that is so; one that is paused already is fine. */
  pause(ref: string, signal: AbortSignal): Promise<Sandbox>;
  /** Lets a paused one go on. Resolves when it is proven. */
  resume(ref: string, signal: AbortSignal): Promise<Sandbox>;
  /** Puts its memory on disk, or gives it up where that is not to be had. Resolves when nothing of it is in memory, or as `suspending` where that takes longer. */
  standby(ref: string, signal: AbortSignal): Promise<Sandbox>;
  /** Resolves when it is proven; what any call does by itself. */
  wake(ref: string, signal: AbortSignal): Promise<Sandbox>;
  /** Ends its instance, where it has one, and starts it again on the same files; also one that failed. Resolves when it is proven. */
  restart(ref: string, signal: AbortSignal): Promise<Sandbox>;
  /** A fresh proof now. */
  verify(ref: string, signal: AbortSignal): Promise<Proof>;
  processes(ref: string, signal: AbortSignal): Promise<ProcessInfo[]>;
  /** Figures of now and of the last minutes. Wakes nobody. */
  resources(ref: string, signal: AbortSignal): Promise<ResourceReport>;
  /** Those of all that live, as they were last taken: nothing is looked at for it. In the order of their creation. */
  usage(): UsageList;
  /** What is the matter with it, from a look of at most `windowMs`. Wakes nobody and needs no link. */
  diagnosis(ref: string, options: { windowMs?: number | undefined }, signal: AbortSignal): Promise<Diagnosis>;
}

export interface AlertApi {
  /** Those that fire and, with `cleared`, those that did lately. */
  list(filter: { cleared: boolean }): Promise<AlertList>;
  deliveries(filter: {
    state?: Delivery["state"] | undefined;
    cursor?: string | undefined;
    limit: number;
  }): Promise<DeliveryList>;
  /** Tries a dead one again, from the first wait on, with what else of its alert is dead. Any other is answered as it is. */
  redeliver(id: string): Promise<Delivery>;
  /** For those who watch from outside. */
  figures(): Promise<AlertFigures>;
}

export interface AlertFigures {
  /** When alerts were last evaluated; null where they were not yet. */
  evaluatedAt: number | null;
  firing: readonly { kind: AlertKind; severity: Severity; count: number }[];
  /** As last taken; a kind that could not be read is null. */
  readings: Readings;
  deliveries: Readonly<Record<DeliveryState, number>>;
}

export interface CheckpointApi {
  /** Copies its files, and its memory where that can be had, at one moment. Resolves when the sandbox is proven again. */
  create(ref: string, input: CreateCheckpoint, signal: AbortSignal): Promise<Checkpoint>;
  /** Oldest first. Wakes nobody. */
  list(ref: string): Promise<CheckpointList>;
  /** By id or name. */
  remove(ref: string, which: string, signal: AbortSignal): Promise<void>;
}

export interface DriveApi {
  /** Resolves when it can be mounted. `existed` tells 200 from 201. */
  create(
    input: CreateDrive,
    options: { owner?: string | null; signal: AbortSignal },
  ): Promise<{ drive: Drive; existed: boolean }>;
  /** With what it takes on disk, measured now where that does not take too long. */
  get(ref: string, signal: AbortSignal): Promise<Drive>;
  list(filter: {
    labels?: Labels | undefined;
    cursor?: string | undefined;
    limit: number;
  }): Promise<DriveList>;
  /** Its labels from now on. */
  update(ref: string, changes: UpdateDrive, signal: AbortSignal): Promise<Drive>;
  /** Null once nothing of it is left; as `deleting` where that takes longer, which then goes on by itself. */
  remove(ref: string, options: { force: boolean; signal: AbortSignal }): Promise<Drive | null>;
}

export interface MountApi {
  /** Wakes nobody. */
  list(ref: string): Promise<MountList>;
  /** Resolves when it is proven. The same mount again is fine, and is proven again. */
  mount(ref: string, input: MountDrive, signal: AbortSignal): Promise<{ mount: Mount; existed: boolean }>;
  /** Resolves when it is seen to be gone. */
  unmount(ref: string, path: string, signal: AbortSignal): Promise<void>;
}

export interface OutputOptions {
  cursor?: string | undefined;
  follow: boolean;
  /** Only this stream; cursors stay the same. */
  stream?: OutputStream | undefined;
  /** Asked between records: whether nothing of what was given so far is needed any more. Its memory is then used again. */
  isTaken?: () => boolean;
  signal: AbortSignal;
}

/** A record of a stream as the engine gives it: bytes are bytes, and become text where they leave the server. */
export type OutputRecord =
  | { type: "start" | "end"; cursor: string; exec: Exec }
  | { type: OutputStream; cursor: string; at: number; data: Uint8Array }
  | { type: "keepalive"; cursor: string; suspended?: boolean };

export interface ExecApi {
  /** Resolves once the exec was started, or ended at once; `followed` when the id already existed. */
  start(
    ref: string,
    input: StartExec,
    options: {
      idempotencyKey?: string | undefined;
      /** The caller is told nothing of the exec before its end, or for a second at least. */
      awaited?: boolean;
      signal: AbortSignal;
    },
  ): Promise<{ exec: Exec; followed: boolean }>;
  get(id: string): Promise<Exec>;
  /** The exec when it ended, or as it is after `waitMs`; with stdout and stderr. */
  wait(id: string, options: { waitMs: number; signal: AbortSignal }): Promise<Exec>;
  list(ref: string, page: { cursor?: string | undefined; limit: number }): Promise<ExecList>;
  /**
   * `start`, output from the cursor on, keepalives, and with `follow` an `end`; without it, an `end` only if it has ended.
   * One that follows is over without an `end` after `streamMaxMs`: the reader comes back with its last cursor.
   */
  output(id: string, options: OutputOptions): AsyncIterable<OutputRecord>;
  /** To be told by who serves readers: one was cut off that took nothing, or answered nothing, for too long. */
  readerWedged(id: string): void;
  /** Exactly once by offset. Without one the data is put behind all that came before, once: never repeat such a call. */
  writeStdin(
    id: string,
    chunk: { offset: number | null; data: Uint8Array; end: boolean },
    signal: AbortSignal,
  ): Promise<{ accepted: number }>;
  /** Of an exec that has a terminal. */
  resize(id: string, size: TerminalSize, signal: AbortSignal): Promise<Exec>;
  signal(id: string, signal: string, abort: AbortSignal): Promise<Exec>;
  /** Kills the tree and waits for the end. */
  cancel(id: string, signal: AbortSignal): Promise<Exec>;
}

export interface ProcessApi {
  /**
   * Resolves when it is ready, is not in time, or is over; at the latest after `waitMs`, as it then is. One of the same name that
   * is not over is followed where it was started in the same way, and is a conflict otherwise.
   */
  start(
    ref: string,
    input: StartProcess,
    options: { waitMs?: number | undefined; signal: AbortSignal },
  ): Promise<{ process: Process; followed: boolean }>;
  /** Oldest first. Wakes nobody. */
  list(ref: string): Promise<ProcessList>;
  /** By name or id. */
  get(ref: string, which: string): Promise<Process>;
  /** When it is ready, is not in time, or is over; at the latest after `waitMs`, as it then is. */
  wait(ref: string, which: string, options: { waitMs: number; signal: AbortSignal }): Promise<Process>;
  /** Ends its run and what would follow. Resolves when its tree is gone. Wakes a sandbox that sleeps. Idempotent. */
  stop(ref: string, which: string, signal: AbortSignal): Promise<Process>;
  /** Ends its run, if there is one, and begins the next at once, also of one that is over. Resolves as `start` does. */
  restart(
    ref: string,
    which: string,
    options: { waitMs?: number | undefined; signal: AbortSignal },
  ): Promise<Process>;
  /** Its runs, newest first, as long as execs are kept. */
  runs(ref: string, which: string, page: { cursor?: string | undefined; limit: number }): Promise<ExecList>;
}

export interface ReadOptions {
  /** Whether a sleeping sandbox may be woken for it. */
  wake: boolean;
}

export interface FileApi {
  /** These three don't wake a sleeping sandbox for what is on its disk; `wake: false` refuses the rest. */
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
  /** Below a directory, by name and content. Never follows a link, and ends at its limits. */
  search(
    ref: string,
    path: string,
    options: ReadOptions & SearchOptions,
    signal: AbortSignal,
  ): Promise<FileSearch>;
  /** A directory, or a file, as a tar archive. What is neither file, directory nor symbolic link is left out. */
  pack(
    ref: string,
    path: string,
    options: ReadOptions,
    signal: AbortSignal,
  ): Promise<AsyncIterable<Uint8Array>>;
  /** Takes a tar archive apart into a directory, which is made where it is missing. What an entry may not be is refused. */
  unpack(ref: string, path: string, body: AsyncIterable<Uint8Array>, signal: AbortSignal): Promise<Unpacked>;
  /** Resolves when no change is missed any more; until the signal, or a lost link, ends it. A sandbox that is watched stays awake. */
  watch(
    ref: string,
    path: string,
    options: { recursive: boolean },
    signal: AbortSignal,
  ): Promise<AsyncIterable<FileChange>>;
}

export interface SearchOptions {
  /** A glob: of names, or with a slash in it of paths below the directory. */
  name?: string | undefined;
  /** Text that a line must contain. */
  content?: string | undefined;
  /** Whether that is a regular expression. */
  regex?: boolean | undefined;
  ignoreCase?: boolean | undefined;
  /** How many lines before and after one that was found are told with it. */
  contextLines?: number | undefined;
  /** Names of directories that are not looked into. */
  exclude?: readonly string[] | undefined;
  limit: number;
}

export interface EventQuery {
  ref?: string | undefined;
  execId?: ExecId | undefined;
  /** A drive, by name or id. */
  drive?: string | undefined;
  types?: readonly EventType[] | undefined;
  /** Not before, and before, this time in milliseconds. */
  since?: number | undefined;
  until?: number | undefined;
  /** The `seq` of the last one that was seen. */
  cursor?: string | undefined;
}

export interface EventPage {
  events: readonly Event[];
  /** Behind all that was looked at: what comes after it was not told yet. */
  cursor: string;
}

/** A connection to a port, and what its user says of it. */
export interface PortConnection {
  readonly sandboxId: SandboxId;
  /** Fails with `StreamCut` where it ends before its end. Who lets go of it destroys it. */
  readonly bytes: Duplex;
  /** What was asked for was answered: from now on only traffic keeps the sandbox awake. */
  settled(): void;
  /** Something was sent, or came. */
  used(): void;
}

export interface PortApi {
  /** Connections that are open now. */
  readonly open: number;
  /** Resolves when what listens there has taken the connection; a sandbox that sleeps is woken. The signal ends it as well. */
  connect(ref: string, port: number, signal: AbortSignal): Promise<PortConnection>;
}

/** What a preview lets in. */
export interface Grant {
  previewId: PreviewId;
  sandboxId: SandboxId;
  port: number;
  expiresAt: number | null;
  /** Aborted when it is over, or was taken back: what came in by it goes. */
  signal: AbortSignal;
}

export interface PreviewApi {
  /** The token is null for a public one, and where none is wanted yet. */
  create(
    ref: string,
    input: CreatePreview,
    options?: { token?: boolean },
  ): Promise<{ preview: PreviewInfo; token: string | null }>;
  /** Oldest first. Wakes nobody, as none of these do. */
  list(ref: string): Promise<PreviewInfo[]>;
  get(ref: string, name: string): Promise<PreviewInfo>;
  /** A preview of another port has no tokens any more. */
  update(
    ref: string,
    name: string,
    changes: { port?: number | undefined; public?: boolean | undefined; ttlMs?: number | null | undefined },
  ): Promise<PreviewInfo>;
  remove(ref: string, name: string): Promise<void>;
  createToken(
    ref: string,
    name: string,
    options: { ttlMs?: number | undefined },
  ): Promise<{ info: PreviewTokenInfo; token: string }>;
  tokens(ref: string, name: string): Promise<PreviewTokenInfo[]>;
  /** A token again, for who may make another one at any time. */
  token(ref: string, name: string, id: string): Promise<string>;
  removeToken(ref: string, name: string, id: string): Promise<void>;
  /** What a token opens; `preview_denied` where that is nothing, whatever the reason. */
  admit(token: string): Grant;
  /** Where a port is open without a token; null where it is not. */
  admitPublic(sandboxId: SandboxId, port: number): Grant | null;
  /** One that is not over; null where there is none. */
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
  /** Files of drives, without any sandbox: a `ref` is a drive's. */
  readonly driveFiles: FileApi;
  readonly ports: PortApi;
  readonly previews: PreviewApi;
  readonly images: Images;
  readonly alerts: AlertApi;
  /** Oldest first, unless it is told otherwise. */
  events(filter: EventQuery & { order?: EventOrder | undefined; limit: number }): Promise<EventList>;
  /**
   * What `events` lists from the cursor or `since` on, or without either from now on, page by page; and then what happens,
   * until the signal, or `until`, ends it. The first page is empty and comes at once: its cursor is where it begins. Others are
   * empty every so often, where nothing happens. What retention took before it was read is `events_dropped`, never a gap.
   */
  followEvents(filter: EventQuery, signal: AbortSignal): AsyncIterable<EventPage>;
  stats(): Promise<Stats>;
  /** Compares records and reality, both ways, now. Callers at the same time share one. */
  audit(): Promise<AuditReport>;
  /** The last one; null where none was made yet. */
  lastAudit(): AuditReport | null;
  /** All layers of cleaning that are due by their rules, now; `emergency` as well what may go when the host runs short. */
  cleanup(options: { dryRun: boolean; emergency: boolean }): Promise<SweepReport>;
  /** Empty when the engine can take work; otherwise why not. */
  unreadiness(): string[];
  /** Recovers what an earlier server left, then takes work. */
  start(): Promise<void>;
  /** Takes no more work, lets go of links; instances run on. */
  stop(): Promise<void>;
}
