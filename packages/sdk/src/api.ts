/**
 * Everything a user of the SDK calls, in one place. Every method takes an `AbortSignal`; aborting ends the waiting
 * and throws the signal's reason, it does not undo what was asked for. Every failure is a `HoldfastError`; what is known
 * of an exec that is no longer waited for is in an `ExecUnfinishedError` and in its handle.
 */
import type {
  AlertList,
  Checkpoint,
  CreateDrive,
  CreateSandbox,
  Delivery,
  DeliveryState,
  Diagnosis,
  Drive as DriveInfo,
  Event,
  EventType,
  Exec,
  FileChange,
  FileList,
  FileSearch,
  FileStat,
  Image,
  LogLevel,
  Mount,
  MountDrive,
  Preview,
  PreviewToken,
  PreviewTokenInfo,
  Process,
  Proof,
  ResourceReport,
  Sandbox as SandboxInfo,
  SandboxStatus,
  SandboxStory,
  StartExec,
  StartProcess,
  Unpacked,
  UpdateDrive,
  UpdateSandbox,
  UsageSummary,
} from "./types.generated.ts";

export interface CallOptions {
  signal?: AbortSignal | undefined;
}

export interface WaitOptions extends CallOptions {
  /**
   * How long this call waits at most, whatever for; then it throws `ExecUnfinishedError`, which has all that is known.
   * The command is not affected: what ends that is `timeoutMs` of its start, or `cancel`. Default: no bound.
   */
  giveUpAfterMs?: number | undefined;
}

export interface PageOptions extends CallOptions {
  /** At most 1000. */
  limit?: number | undefined;
  /** `nextCursor` of the page before. */
  cursor?: string | undefined;
}

export interface Page<Item> {
  items: Item[];
  /** Null on the last page. */
  nextCursor: string | null;
}

export interface ClientOptions {
  /** Default: HOLDFAST_URL, else the server of this machine. */
  url?: string | undefined;
  /** Default: HOLDFAST_API_KEY, else, for this machine only, the key in the server's state directory. */
  apiKey?: string | undefined;
  /** How long one request may go unanswered, beyond what it asks the server to wait. Default 30 s. */
  timeoutMs?: number | undefined;
  /**
   * How long a server that has answered before may be away before a call gives up; a restart takes seconds. Whoever waits for
   * an exec bears one that says "not now" as long, other calls do for at most 10 s. Default 30 s.
   */
  outageMs?: number | undefined;
  /** Sends requests through this instead of node:http. */
  fetch?: typeof globalThis.fetch | undefined;
}

export interface Sandboxes {
  /**
   * Resolves once the sandbox is proven to execute and to serve files, however long it waits for its turn. Safe against lost
   * answers: one call makes one sandbox. With `fromCheckpoint` it is a fork: it begins with the files of that checkpoint, and
   * its memory where it has any, and `info.forkedFrom` says so. `image` and `resources` are then not its to choose. What is
   * in `mounts` is there, and proven, before anything runs in it.
   */
  create(options?: CreateSandbox & CreateOptions): Promise<Sandbox>;
  /** The live sandbox of that name, made if there is none. */
  getOrCreate(options: CreateSandbox & { name: string } & CreateOptions): Promise<Sandbox>;
  /** By id or name. */
  get(ref: string, options?: CallOptions): Promise<Sandbox>;
  list(filter?: SandboxFilter): Promise<Page<SandboxInfo>>;
  /** What every live sandbox uses, as the server last measured it: one call for all, which looks at none of them. */
  usage(options?: CallOptions): Promise<UsageSummary[]>;
  /**
   * What a handle's `delete` does, by id alone. It also removes what is left of a sandbox whose record is gone or can't be
   * read, to which there is no handle: `get` fails with `pending_cleanup`.
   */
  delete(id: string, options?: DeleteOptions): Promise<void>;
}

export interface CreateOptions extends CallOptions {
  /** Told each step of a launch as it begins. A server that does not tell leaves it uncalled. */
  onProgress?: ((progress: CreateProgress) => void) | undefined;
}

export interface CreateProgress {
  step: CreateStep;
  at: string;
}

/** `waiting`: in line behind other launches; `checkpoint` and `memory`: of forks only. More may be added. */
export type CreateStep =
  | "accepted"
  | "waiting"
  | "launching"
  | "checkpoint"
  | "files"
  | "root"
  | "memory"
  | "runtime"
  | "keeper"
  | "proving"
  | "ready"
  | (string & {});

export interface SandboxFilter extends PageOptions {
  status?: readonly SandboxStatus[] | undefined;
  labels?: Record<string, string> | undefined;
}

/**
 * A handle. `await using` deletes the sandbox, verified, if this handle created it; otherwise it only lets go. One to a
 * sandbox in standby is as good as any: `info`, `refresh`, `events` and all that is known of execs leave it asleep, and
 * every call that needs it awake waits for the one wake that it and others cause.
 */
export interface Sandbox extends AsyncDisposable {
  readonly id: string;
  readonly name: string;
  /** As of the last answer; `refresh` gets a new one. */
  readonly info: SandboxInfo;
  readonly execs: Execs;
  readonly files: Files;
  readonly checkpoints: Checkpoints;
  readonly previews: Previews;
  /** What listens at a TCP port inside, for whoever has the key. Asks nothing of the server yet. */
  port(number: number): SandboxPort;
  /** Named, long-lived processes. */
  readonly processes: Processes;
  /**
   * Runs a command and waits for its end, however long that takes and however often the server restarts meanwhile: a
   * string by `/bin/sh -c`, an array as it is. A non-zero exit, a timeout or a lost exec is data; it throws only where the
   * command could not be run, or was not waited for (`ExecUnfinishedError`, or your signal's reason: with an `id` of your
   * own `execs.get` finds it again).
   */
  exec(command: string | readonly string[], options?: ExecOptions): Promise<ExecResult>;
  refresh(options?: CallOptions): Promise<SandboxInfo>;
  /** A fresh proof now: every check, passed or not. */
  verify(options?: CallOptions): Promise<Proof>;
  /** Labels, environment and lifecycle from now on: what is not named stays, null removes. Wakes nobody. */
  update(changes: UpdateSandbox & CallOptions): Promise<SandboxInfo>;
  /** Freezes it, its memory stays where it is. Calls into it are refused until `resume`; a paused one is fine. */
  pause(options?: CallOptions): Promise<SandboxInfo>;
  /** Lets a paused one go on, and resolves once it is proven. */
  resume(options?: CallOptions): Promise<SandboxInfo>;
  /**
   * Puts it to sleep, and resolves once nothing of it is in memory. The next call wakes it, and never notices:
   * `info.standbyKind` says whether its processes then go on (`memory`) or only its files are there (`files`). Throws
   * `standby_cancelled` where another call came first and `standby_failed` where it can't be done; it stays awake then.
   * Connections to the outside don't survive it: see `onWake`.
   */
  standby(options?: CallOptions): Promise<SandboxInfo>;
  /** Resolves once it is proven. Not needed before a call: every call that needs it awake does this by itself. */
  wake(options?: CallOptions): Promise<SandboxInfo>;
  /**
   * Ends its processes and starts it anew on the same files; resolves once it is proven. Also the way back for one that
   * failed, while its files are kept. Commands under way end as `lost`. Never repeated by itself: the error's `dispatched` tells.
   */
  restart(options?: CallOptions): Promise<SandboxInfo>;
  /**
   * Mounts a drive, by its name or id, at a directory that is made where it is missing; resolves once the same is seen there
   * from inside and outside. The same mount again is fine, and is proven again. Throws `mount_conflict` where another is at
   * the path, above or below it, and `mount_refused` where nothing can be.
   */
  mount(drive: string, path: string, options?: MountOptions): Promise<Mount>;
  /** Resolves once it is seen to be gone. What is in the drive stays in it. */
  unmount(path: string, options?: CallOptions): Promise<void>;
  /** Its drives, and where they are. Leaves a sandbox in standby asleep. */
  mounts(options?: CallOptions): Promise<Mount[]>;
  /** What happened to the sandbox, oldest first. `holdfast.events.follow({ sandbox: box.id })` goes on with what happens. */
  events(options?: EventFilter): Promise<Page<Event>>;
  /** What it uses: CPU, memory, I/O, disk, and its processes with what they wait for. Leaves one in standby asleep. */
  resources(options?: CallOptions): Promise<ResourceReport>;
  /**
   * What is the matter with it, with the evidence, what the server does about it and what you can do; also when nothing is.
   * Looks from outside: it need not answer, and is not woken.
   */
  diagnose(options?: DiagnoseOptions): Promise<Diagnosis>;
  /** The last of what happened in it and of what its commands said, in the order of time. Leaves one in standby asleep. */
  story(options?: CallOptions & { limit?: number | undefined }): Promise<SandboxStory>;
  /** Resolves once its absence was observed; throws `deadline` after two minutes, while the server goes on trying. */
  delete(options?: DeleteOptions): Promise<SandboxInfo>;
}

/** Copies of a sandbox, each of one moment, kept beside it. They belong to it, and go with it. */
export interface Checkpoints {
  /**
   * Copies its files, and its memory where `info.standbyKind` is `memory`; resolves once that is kept and the sandbox, which
   * is frozen for the copy, is proven again. Calls into it are held meanwhile. Throws `checkpoint_failed` where it can't be
   * done, and the sandbox goes on. Where the answer is lost it is asked for again only if it has a `name`, since a second of
   * that name is never made: a `checkpoint_exists` that says `dispatched: "unknown"` may be about the one of this call.
   */
  create(options?: CheckpointOptions): Promise<Checkpoint>;
  /** Oldest first. Leaves a sandbox in standby asleep. */
  list(options?: CallOptions): Promise<Checkpoint[]>;
  /** Sandboxes that began with it have a copy of their own. */
  delete(idOrName: string, options?: CallOptions): Promise<void>;
}

export interface CheckpointOptions extends CallOptions {
  /** A DNS label that no other checkpoint of the sandbox has; made up where absent. */
  name?: string | undefined;
}

/** A program that listens at a port of a sandbox, on its loopback. */
export interface SandboxPort {
  readonly number: number;
  /**
   * Asks the program for a path, as `fetch` does, and gives back whatever it answers, whatever its status; both bodies may be
   * streams. A sandbox that sleeps is woken. It throws where no answer of the program came: `port_closed` (nothing listens),
   * `port_cut` (it was gone before it answered; `dispatched` tells), `port_silent`, and all that every call can throw. What can do
   * no harm is repeated, by the server and from here: GET, HEAD and OPTIONS without a body. A body that is cut throws while it is read.
   * The key goes in a header of its own and is not passed on, so that an `Authorization` of the program's can be sent. Redirects are
   * given back and not followed: the program decides where they lead, and the key does not go there.
   */
  fetch(path: string, init?: Omit<RequestInit, "redirect">): Promise<Response>;
  /** Where the path is found by who has the key. For who hasn't, and for browsers, there are previews. */
  url(path?: string): string;
}

/**
 * Ports that can be reached without the key: by a link with a token in it, or by everybody. A preview opens one port and nothing
 * else. None of these calls wakes the sandbox; a visit does.
 */
export interface Previews {
  /**
   * `url` of the answer is a link that opens it; `pathUrl` is the same for programs that can't resolve such a host. The token
   * is told once. Safe against lost answers: one call makes one preview. Only a `preview_exists` that says
   * `dispatched: "unknown"` may be about the one of this call.
   */
  create(port: number, options?: PreviewOptions): Promise<Preview>;
  /** Oldest first, without tokens. */
  list(options?: CallOptions): Promise<Preview[]>;
  get(idOrName: string, options?: CallOptions): Promise<Preview>;
  /** What came in by it is cut. */
  delete(idOrName: string, options?: CallOptions): Promise<void>;
  /** One more, with links that have it in them. Where the answer is lost it is not asked for again: each request makes one. */
  createToken(idOrName: string, options?: TokenOptions): Promise<PreviewToken>;
  /** Those there are, without their secrets. */
  tokens(idOrName: string, options?: CallOptions): Promise<PreviewTokenInfo[]>;
  /** Takes one back, by its id; what came in by it is cut. */
  deleteToken(idOrName: string, tokenId: string, options?: CallOptions): Promise<void>;
}

export interface PreviewOptions extends CallOptions {
  /** A DNS label that no other preview of the sandbox has; made up where absent. */
  name?: string | undefined;
  /** Open to everybody, without a token. Default false. */
  public?: boolean | undefined;
  /** How long it is open. Default: as long as the sandbox lives. */
  ttlMs?: number | undefined;
  /** How long the token in the answer is good for. Default a day. */
  tokenTtlMs?: number | undefined;
}

export interface TokenOptions extends CallOptions {
  /** Default a day, and never longer than the preview. */
  ttlMs?: number | undefined;
}

export interface MountOptions extends CallOptions {
  /** The directory of the drive that is mounted, made where it is missing. Default: all of it. */
  subpath?: string | undefined;
  readOnly?: boolean | undefined;
}

/** Persistent directories that any number of sandboxes can have at the same time. They outlive all of them. */
export interface Drives {
  /**
   * Resolves once it can be mounted. Safe against lost answers: one call makes one drive. Only a `drive_exists` that says
   * `dispatched: "unknown"` may be about the one of this call; `getOrCreate` has no such doubt.
   */
  create(options?: CreateDrive & CallOptions): Promise<Drive>;
  /** The drive of that name, made if there is none. One of another size than asked for is `drive_exists`. */
  getOrCreate(options: CreateDrive & { name: string } & CallOptions): Promise<Drive>;
  /** By id or name; measured now, where that does not take too long. */
  get(ref: string, options?: CallOptions): Promise<Drive>;
  /** In the order of their creation, each with what it took on disk when it was last measured. */
  list(filter?: DriveFilter): Promise<Page<DriveInfo>>;
  /** What a handle's `delete` does, by id or name. */
  delete(ref: string, options?: DeleteDriveOptions): Promise<void>;
}

/** A handle. Letting go of it touches nothing: a drive goes when it is deleted, and by nothing else. */
export interface Drive {
  readonly id: string;
  readonly name: string;
  /** As of the last answer; `refresh` gets a new one. */
  readonly info: DriveInfo;
  /** Its files, without any sandbox: `/` is the drive itself. What sandboxes that have it see is the same. */
  readonly files: Files;
  refresh(options?: CallOptions): Promise<DriveInfo>;
  /** Its labels from now on: those that are not named stay, null removes. */
  update(changes: UpdateDrive & CallOptions): Promise<DriveInfo>;
  /** What happened to the drive, oldest first. */
  events(options?: EventFilter): Promise<Page<Event>>;
  /**
   * Removes it with all that is in it, and resolves once nothing of it is left; throws `deadline` after two minutes, while
   * the server goes on trying. Throws `drive_mounted` where a sandbox has it, asleep or not; its message says which.
   */
  delete(options?: DeleteDriveOptions): Promise<void>;
}

export interface DriveFilter extends PageOptions {
  labels?: Record<string, string> | undefined;
}

export interface DeleteDriveOptions extends CallOptions {
  /** Takes it from the sandboxes that have it, which are degraded until they give up its path. Default false. */
  force?: boolean | undefined;
}

export interface DeleteOptions extends CallOptions {
  /** Time for processes to end by themselves after SIGTERM. Default 0: they are killed. */
  graceMs?: number | undefined;
}

/** A moment: a `Date`, or text in ISO 8601 with its offset. */
export type Moment = Date | string;

export interface EventFilter extends PageOptions {
  types?: readonly EventType[] | undefined;
  /** The id of an exec. */
  exec?: string | undefined;
  /** Not before, and before, this time. */
  since?: Moment | undefined;
  until?: Moment | undefined;
  /** Which come first. Default: the oldest. */
  order?: "oldest" | "newest" | undefined;
}

/** What an event may be about. */
export interface EventSubject {
  /** By name, or by id also when it is gone. */
  sandbox?: string | undefined;
  drive?: string | undefined;
}

/** The timeline: all that happened to sandboxes, execs, drives and the server, for as long as that is kept. */
export interface Events {
  /** Oldest first, unless `order` says otherwise. */
  list(filter?: EventFilter & EventSubject): Promise<Page<Event>>;
  /**
   * What happened from a cursor or `since` on, or without either from now on, and then what happens, until `until` or for ever.
   * Reconnects by itself: over lost connections and servers that restart each event comes once, in the order of its `seq`.
   */
  follow(options?: FollowOptions): AsyncIterable<Event>;
}

export interface FollowOptions extends CallOptions, EventSubject {
  types?: readonly EventType[] | undefined;
  exec?: string | undefined;
  since?: Moment | undefined;
  until?: Moment | undefined;
  /** The `seq` of the last event that was seen, as text. `0`: from the oldest that is kept. */
  cursor?: string | undefined;
  /**
   * What to do when events are no longer kept that were not seen yet: throw an `EventsDroppedError`, or go on with the first
   * that is kept. Default: throw.
   */
  onDropped?: "throw" | "skip" | undefined;
  /** Told each time it begins, from where on nothing is missed, and when the connection is lost; then it is tried again for up to `outageMs`. */
  onConnection?: ((state: "open" | "lost") => void) | undefined;
}

/** What goes wrong with the server as a whole, or with a sandbox for too long. */
export interface Alerts {
  /** Those that fire and, with `cleared`, those that did lately. */
  list(options?: CallOptions & { cleared?: boolean | undefined }): Promise<AlertList>;
  /** What was sent to the webhook, or is to be, newest first. */
  deliveries(filter?: PageOptions & { state?: DeliveryState | undefined }): Promise<Page<Delivery>>;
  /** Sends a dead one again. */
  retry(id: string, options?: CallOptions): Promise<Delivery>;
}

export interface LogFilter extends PageOptions {
  /** By name, or by id also when it is gone. */
  sandbox?: string | undefined;
  drive?: string | undefined;
  exec?: string | undefined;
  /** `requestId` of an error, or an answer's `x-request-id`. */
  request?: string | undefined;
  /** This one and those that are worse. */
  level?: LogLevel | undefined;
  /** What the line says, in any case. */
  text?: string | undefined;
  since?: Moment | undefined;
  until?: Moment | undefined;
}

export interface DiagnoseOptions extends CallOptions {
  /** How long it is looked at: at most 10 s. Default 3 s. */
  windowMs?: number | undefined;
}

export interface ExecOptions extends WaitOptions {
  /** Starting an id that exists follows it: the command never runs twice. Made up where absent. */
  id?: string | undefined;
  env?: Record<string, string> | undefined;
  cwd?: string | undefined;
  /** Default: uid 1000. */
  user?: string | undefined;
  /** After this long the command and all it started are killed; the status is then `timed_out`. */
  timeoutMs?: number | undefined;
  /** Given to the command, then end of file. */
  stdin?: string | undefined;
  /**
   * Whether the sandbox stays awake while the command runs; default true. One that doesn't hold it awake sleeps with it and
   * goes on after the wake: its `info` is `suspended` meanwhile, and waiting for it, or reading its output, wakes nothing.
   */
  keepAwake?: boolean | undefined;
  /** Done once after every wake, when the sandbox is proven: how the command learns that its connections are gone. */
  onWake?: OnWake | undefined;
}

/** A signal to the command's process group, such as `SIGHUP`; or a command to run beside it. */
export type OnWake = { signal: string } | { argv: readonly string[] };

export interface StartOptions extends ExecOptions {
  /** Leaves stdin open for `writeStdin`. */
  openStdin?: boolean | undefined;
  /** Gives the command a terminal of this size: all its output is stdout, and `write` types. */
  tty?: TerminalSize | undefined;
}

/** In characters. */
export interface TerminalSize {
  cols: number;
  rows: number;
}

/** An exec that has ended, with what it wrote (at most 1 MiB of each; `output()` has all of it, byte-exact). */
export type ExecResult = Exec & Required<Pick<Exec, "stdout" | "stderr">>;

export interface Execs {
  /** Resolves once the command runs or, where too many do, is `queued` for its turn. */
  start(command: string | readonly string[], options?: StartOptions): Promise<ExecRun>;
  /** A handle to any exec, running or ended, by its id. */
  get(id: string, options?: CallOptions): Promise<ExecRun>;
  /** Newest first. */
  list(options?: PageOptions): Promise<Page<Exec>>;
}

/** One command run. Losing the connection, or this handle, loses nothing of it: `execs.get` makes a new one. */
export interface ExecRun {
  readonly id: string;
  /** As of the last answer. */
  readonly info: Exec;
  /** Behind the last chunk that `output` of this handle gave out; null before the first. */
  readonly cursor: string | null;
  /** What it writes, from the beginning or a cursor on, to the end. Reconnects by itself, without gap or repetition. */
  output(options?: OutputOptions): AsyncIterable<OutputChunk>;
  /** Waits for the end, however long that takes. */
  result(options?: WaitOptions): Promise<ExecResult>;
  /** Kills the command and all it started, and waits for that. */
  cancel(options?: CallOptions): Promise<Exec>;
  /** Sends a signal, such as `SIGINT`. */
  signal(name: string, options?: CallOptions): Promise<Exec>;
  /**
   * Needs `openStdin`. Resolves once all of it was taken; every byte arrives exactly once, also across reconnects, as long
   * as one handle at a time writes. `end` closes stdin behind it.
   */
  writeStdin(content: Content, options?: StdinOptions): Promise<void>;
  /**
   * Types into a terminal, behind whatever other handles type. A piece that was under way when the connection broke is not
   * sent again, since it may have arrived: the error's `dispatched` tells.
   */
  write(content: Content, options?: StdinOptions): Promise<void>;
  /** Of its terminal. */
  resize(size: TerminalSize, options?: CallOptions): Promise<Exec>;
}

/** Named processes of a sandbox: started again when they end, if that is asked for, with nobody's help. */
export interface Processes {
  /**
   * Starts one, and resolves once it is on record and on its way; `ready` waits for more. One of that name that was started in
   * the same way and is not over is returned; one that was started differently is a `process_conflict`.
   */
  start(name: string, command: string | readonly string[], options?: ProcessOptions): Promise<ProcessHandle>;
  /** Oldest first, those that are over included. Wakes nobody. */
  list(options?: CallOptions): Promise<Process[]>;
  /** By name or id. */
  get(nameOrId: string, options?: CallOptions): Promise<ProcessHandle>;
  /** Ends it and what would follow; resolves once nothing of it is left. One that is over is fine. */
  stop(nameOrId: string, options?: CallOptions): Promise<Process>;
  /** Ends its run, if there is one, and begins the next at once. Never repeated by itself. */
  restart(nameOrId: string, options?: CallOptions): Promise<Process>;
}

export interface ProcessOptions extends CallOptions {
  env?: Record<string, string> | undefined;
  cwd?: string | undefined;
  user?: string | undefined;
  /** Of each run. */
  timeoutMs?: number | undefined;
  tty?: TerminalSize | undefined;
  /** Whether the sandbox stays awake for it. Default false: it sleeps with it, and goes on after the wake. */
  keepAwake?: boolean | undefined;
  onWake?: OnWake | undefined;
  /** How it is started again when it ends. Default: not at all. */
  restart?: StartProcess["restart"] | undefined;
  /** What has to be seen of each run before it is ready. Default: it runs. */
  readyWhen?: StartProcess["readyWhen"] | undefined;
  /** After a wake, something has to listen there within so long, or it is `unready` and says why. */
  connectBy?: StartProcess["connectBy"] | undefined;
}

/** One named process. Losing this handle loses nothing of it: `processes.get` makes a new one. */
export interface ProcessHandle {
  readonly id: string;
  readonly name: string;
  /** As of the last answer; `refresh` gets a new one. */
  readonly info: Process;
  refresh(options?: CallOptions): Promise<Process>;
  /**
   * Waits until it is ready, across restarts of it and of the server. Throws `ProcessNotReadyError`, which has the process with the
   * cause, where it is over, was not ready in time, or was not waited for any longer.
   */
  ready(options?: WaitOptions): Promise<Process>;
  /** Its runs, newest first: execs, with an outcome and output of their own. */
  runs(options?: PageOptions): Promise<Page<Exec>>;
  /** What its last run writes, from its beginning on, and then what the runs behind it write, until it is over. */
  output(options?: ProcessOutputOptions): AsyncIterable<ProcessChunk>;
  stop(options?: CallOptions): Promise<Process>;
  restart(options?: CallOptions): Promise<Process>;
}

export interface ProcessOutputOptions extends Omit<OutputOptions, "cursor"> {}

export interface ProcessChunk extends OutputChunk {
  /** The run that wrote it. */
  readonly execId: string;
}

export interface StdinOptions extends WaitOptions {
  /** Nothing follows: stdin is closed or, on a terminal, its end-of-file character typed. */
  end?: boolean | undefined;
}

export interface OutputOptions extends WaitOptions {
  /** Where to begin: `cursor` of the last chunk that was read. */
  cursor?: string | undefined;
  /** False: only what is there already. */
  follow?: boolean | undefined;
  /** Only this stream. Cursors are the same for both. */
  stream?: "stdout" | "stderr" | undefined;
  /**
   * What to do when output is gone before it was read, because the command wrote more than a journal holds: throw an
   * `OutputDroppedError`, or go on with the first output that is kept. Default: throw.
   */
  onDropped?: "throw" | "skip" | undefined;
  /** Told when the connection is lost, and when it is back; in between it is tried again for up to `outageMs`. */
  onConnection?: ((state: "lost" | "back") => void) | undefined;
}

export interface OutputChunk {
  readonly stream: "stdout" | "stderr";
  readonly data: Uint8Array;
  /** As UTF-8; a character cut by the chunk's end comes with the next one of its stream. */
  readonly text: string;
  /** The position after this chunk. */
  readonly cursor: string;
  readonly at: string;
  /** Output before this chunk was skipped (`onDropped`). */
  readonly dropped: boolean;
}

/** What can be written to a file or to stdin. Streams, a `ReadableStream` among them, are sent as they come. */
export type Content = string | Uint8Array | AsyncIterable<string | Uint8Array>;

/** Files inside a sandbox, or in a drive, by absolute path. */
export interface Files {
  /** What only reads (this, `list`, `stat`, `search`, `pack`) doesn't wake a sleeping sandbox for what is on its disk. */
  read(path: string, options?: RangeOptions): Promise<Uint8Array>;
  readText(path: string, options?: RangeOptions): Promise<string>;
  readStream(path: string, options?: RangeOptions): Promise<AsyncIterable<Uint8Array>>;
  /** Atomic: readers see the old content or the new one. Makes missing directories unless told not to. */
  write(path: string, content: Content, options?: WriteOptions): Promise<FileStat>;
  list(path: string, options?: ReadOptions & { limit?: number | undefined }): Promise<FileList>;
  stat(path: string, options?: ReadOptions): Promise<FileStat>;
  exists(path: string, options?: ReadOptions): Promise<boolean>;
  /** With missing parents; an existing directory is fine. */
  mkdir(path: string, options?: CallOptions & { mode?: string | undefined }): Promise<FileStat>;
  remove(path: string, options?: CallOptions & { recursive?: boolean | undefined }): Promise<void>;
  move(
    from: string,
    to: string,
    options?: CallOptions & { overwrite?: boolean | undefined },
  ): Promise<FileStat>;
  /**
   * What lies below a directory, by name and content, what is nearer to it first. Links are not followed. It ends at its
   * limits, of results, time, entries and bytes: `truncated` then says that it has not seen everything.
   */
  search(path: string, options?: SearchOptions): Promise<FileSearch>;
  /**
   * A directory with all below it, or a file, as a tar archive: files, directories and symbolic links, with modes, owners
   * and times. Throws while it is read where it can't be made to its end.
   */
  pack(path: string, options?: ReadOptions): Promise<AsyncIterable<Uint8Array>>;
  /**
   * Takes a tar archive, gzipped or not, apart into a directory that is made where it is missing. Modes and times are the
   * archive's; what is new belongs to uid 1000. Throws where an entry may not be; what was unpacked before it stays.
   */
  unpack(
    path: string,
    archive: Uint8Array | AsyncIterable<Uint8Array>,
    options?: CallOptions,
  ): Promise<Unpacked>;
  /**
   * Resolves when no change of a directory, or file, is missed any more; then gives each of them, for as long as it is
   * iterated. It survives lost connections and servers that restart: an `overflow` says that changes may have been missed, there
   * or elsewhere, so look again. Whoever watches keeps the sandbox from falling asleep by itself, and wakes it again where it
   * is put to sleep: to let it sleep, leave the loop.
   */
  watch(path: string, options?: WatchOptions): Promise<AsyncIterable<FileChange>>;
}

export interface SearchOptions extends ReadOptions {
  /** A glob of names or, with a slash in it, of paths below the directory. `*` means no name that begins with a dot. */
  name?: string | undefined;
  /** Text that a line of the file has in it. */
  content?: string | undefined;
  /** `content` is a regular expression. */
  regex?: boolean | undefined;
  ignoreCase?: boolean | undefined;
  /** How many lines before and after one that was found are told with it. At most 50. */
  contextLines?: number | undefined;
  /** Names of directories that are not looked into. */
  exclude?: readonly string[] | undefined;
  /** At most 10000. Default 1000. */
  limit?: number | undefined;
}

export interface WatchOptions extends CallOptions {
  /** All below the directory as well. */
  recursive?: boolean | undefined;
}

export interface ReadOptions extends CallOptions {
  /**
   * False: what is there only while the sandbox is awake (on tmpfs, in `/proc` and `/dev`) is `not_on_disk`, instead of
   * waking it. Default true.
   */
  wake?: boolean | undefined;
}

export interface RangeOptions extends ReadOptions {
  offset?: number | undefined;
  length?: number | undefined;
}

export interface WriteOptions extends CallOptions {
  /** Octal, such as "0755". */
  mode?: string | undefined;
  parents?: boolean | undefined;
}

export interface Images {
  list(options?: CallOptions): Promise<Image[]>;
  /** From a tar archive of a root file system, gzipped or not. */
  import(name: string, tar: Uint8Array | AsyncIterable<Uint8Array>, options?: CallOptions): Promise<Image>;
  remove(name: string, options?: CallOptions): Promise<void>;
}

export interface CleanupOptions extends CallOptions {
  /** Removes nothing; says what would be removed. */
  dryRun?: boolean | undefined;
  /** Deletes every disposable sandbox that has no exec under way as well. */
  emergency?: boolean | undefined;
}

export type { CreateDrive, CreateSandbox, MountDrive, StartExec, UpdateDrive, UpdateSandbox };
