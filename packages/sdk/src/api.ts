/**
 * The public interface of the SDK, in one file. Every method takes an `AbortSignal`; aborting stops the wait and throws
 * the signal's reason, but does not undo the request. Every failure is a `HoldfastError`. If a call stops waiting for
 * an exec, the last known state is in the `ExecUnfinishedError` and in the exec's handle.
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
   * Maximum time for which this call waits. After it, the call throws `ExecUnfinishedError` with the last known state,
   * and the command keeps running. Only `cancel`, or the `timeoutMs` with which the command was started, ends the
   * command. Default: no limit.
   */
  giveUpAfterMs?: number | undefined;
}

export interface PageOptions extends CallOptions {
  /** Items per page, at most 1000. */
  limit?: number | undefined;
  /** `nextCursor` of the previous page. */
  cursor?: string | undefined;
}

export interface Page<Item> {
  items: Item[];
  /** Null on the last page. */
  nextCursor: string | null;
}

export interface ClientOptions {
  /** URL of the server. Default: HOLDFAST_URL, else the server on this machine. */
  url?: string | undefined;
  /** API key. Default: HOLDFAST_API_KEY, else the key that a running server on this machine announces. */
  apiKey?: string | undefined;
  /**
   * How long the server may take to respond, in addition to the time for which the request itself asks the server to
   * wait. Default 30 s.
   */
  timeoutMs?: number | undefined;
  /**
   * How long a call retries when a server that has answered before becomes unreachable. A restart of the server takes
   * seconds. Calls that wait for an exec also retry "unavailable" responses for this long, other calls for at most 10
   * s. Default 30 s.
   */
  outageMs?: number | undefined;
  /** Sends requests through this function instead of node:http. */
  fetch?: typeof globalThis.fetch | undefined;
}

export interface Sandboxes {
  /**
   * Creates a sandbox. Resolves when the sandbox is proven to run commands and serve files, however long it is queued.
   * Safe against lost responses: one call creates one sandbox. With `fromCheckpoint` the sandbox is a fork: it starts
   * with the checkpoint's files, and with its memory if the checkpoint has memory. `info.forkedFrom` is then set, and
   * `image` and `resources` come from the checkpoint. Drives in `mounts` are mounted and proven before any command
   * runs.
   *
   * @example
   * await using box = await holdfast.sandboxes.create({ name: "box", resources: { memoryMb: 512 } });
   * const { stdout } = await box.exec("uname -a");
   */
  create(options?: CreateSandbox & CreateOptions): Promise<Sandbox>;
  /** Returns the live sandbox of that name, or creates it. */
  getOrCreate(options: CreateSandbox & { name: string } & CreateOptions): Promise<Sandbox>;
  /** Returns a handle to a sandbox, by id or name. */
  get(ref: string, options?: CallOptions): Promise<Sandbox>;
  list(filter?: SandboxFilter): Promise<Page<SandboxInfo>>;
  /** Returns the resource usage of all live sandboxes, as last measured by the server. Triggers no new measurement. */
  usage(options?: CallOptions): Promise<UsageSummary[]>;
  /**
   * Deletes a sandbox by id, like `delete` of its handle. Also removes what is left of a sandbox with a missing or
   * unreadable record. There is no handle to such a sandbox, because `get` fails with `pending_cleanup`.
   */
  delete(id: string, options?: DeleteOptions): Promise<void>;
}

export interface CreateOptions extends CallOptions {
  /** Called when each step of the launch begins. Not called if the server does not report steps. */
  onProgress?: ((progress: CreateProgress) => void) | undefined;
}

export interface CreateProgress {
  step: CreateStep;
  at: string;
}

/**
 * `waiting`: the launch is queued behind others; `checkpoint` and `memory`: only for forks. More steps may be added.
 */
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
 * A handle to a sandbox. If this handle created the sandbox, `await using` deletes it at the end of the block, and
 * waits until it was observed to be gone. Otherwise the end of the block has no effect on the sandbox.
 *
 * Sandboxes in standby need no special handling: `info`, `refresh`, `events` and reading execs do not wake the sandbox.
 * Every call that needs the sandbox awake wakes it; concurrent calls share one wake.
 */
export interface Sandbox extends AsyncDisposable {
  readonly id: string;
  readonly name: string;
  /** The state as of the last response; `refresh` updates it. */
  readonly info: SandboxInfo;
  readonly execs: Execs;
  readonly files: Files;
  readonly checkpoints: Checkpoints;
  readonly previews: Previews;
  /** Returns access, with the API key, to a program that listens on a TCP port in the sandbox. Sends no request yet. */
  port(number: number): SandboxPort;
  /** The named, supervised processes of this sandbox. */
  readonly processes: Processes;
  /**
   * Runs a command and waits until it ends, across restarts of the server. A non-zero exit code, a timeout and a lost
   * exec are results and throw nothing. `exec` throws if the command could not be run, or if waiting was given up. In
   * the second case it throws `ExecUnfinishedError` or your signal's reason, and the command keeps running; `execs.get`
   * finds the exec again if you chose its `id`.
   *
   * @param command a string is run by `/bin/sh -c`, an array is run as it is
   * @example
   * const { exitCode, stdout } = await box.exec(["ls", "-l"], { cwd: "/tmp", timeoutMs: 10_000 });
   */
  exec(command: string | readonly string[], options?: ExecOptions): Promise<ExecResult>;
  refresh(options?: CallOptions): Promise<SandboxInfo>;
  /** Runs a new proof and returns every check, passed or failed. */
  verify(options?: CallOptions): Promise<Proof>;
  /**
   * Changes labels, environment and lifecycle. Absent keys stay unchanged, null removes a key. Does not wake the
   * sandbox.
   */
  update(changes: UpdateSandbox & CallOptions): Promise<SandboxInfo>;
  /** Freezes the sandbox in memory. Calls to it are rejected until `resume`. No-op if it is already paused. */
  pause(options?: CallOptions): Promise<SandboxInfo>;
  /** Resumes a paused sandbox; resolves once it is proven to serve. */
  resume(options?: CallOptions): Promise<SandboxInfo>;
  /**
   * Puts the sandbox in standby; resolves when its memory is freed. The next call wakes the sandbox. If
   * `info.standbyKind` is `memory`, its processes continue after the wake; if it is `files`, only its files are
   * preserved. Throws `standby_cancelled` if another call arrived first, and `standby_failed` if standby is not
   * possible; in both cases the sandbox stays awake. Connections to other machines are lost: see `onWake`.
   */
  standby(options?: CallOptions): Promise<SandboxInfo>;
  /**
   * Wakes the sandbox; resolves when it is proven to serve. Optional, because every call that needs the sandbox awake
   * wakes it.
   */
  wake(options?: CallOptions): Promise<SandboxInfo>;
  /**
   * Stops the sandbox's processes and starts it again on the same files; resolves when it is proven to serve. Also
   * recovers a failed sandbox while its files are kept. Running commands end as `lost`. Never retried automatically: if
   * the call fails, `dispatched` of the error says whether the restart may have happened.
   */
  restart(options?: CallOptions): Promise<SandboxInfo>;
  /**
   * Mounts a drive; resolves when the path in the sandbox was seen to be the drive's directory. Repeating the same
   * mount only verifies it again. Throws `mount_conflict` if another drive is mounted at, above or below the path, and
   * `mount_refused` if the path cannot be a mount point.
   *
   * @param drive name or id of the drive
   * @param path mount point inside the sandbox; created if missing
   */
  mount(drive: string, path: string, options?: MountOptions): Promise<Mount>;
  /** Unmounts a drive; resolves when the mount was observed to be gone. The drive keeps its files. */
  unmount(path: string, options?: CallOptions): Promise<void>;
  /** Lists the mounted drives and their paths. Does not wake the sandbox. */
  mounts(options?: CallOptions): Promise<Mount[]>;
  /** Lists the sandbox's events, oldest first. `holdfast.events.follow({ sandbox: box.id })` follows new ones. */
  events(options?: EventFilter): Promise<Page<Event>>;
  /** Returns CPU, memory, I/O and disk usage, and the processes with what they wait for. Does not wake the sandbox. */
  resources(options?: CallOptions): Promise<ResourceReport>;
  /**
   * Diagnoses the sandbox: its condition, the evidence, what the server does about it, and what you can do. The
   * evidence is gathered from outside, so the sandbox need not respond and is not woken.
   */
  diagnose(options?: DiagnoseOptions): Promise<Diagnosis>;
  /** Returns the latest events and command output, in order of time. Does not wake the sandbox. */
  story(options?: CallOptions & { limit?: number | undefined }): Promise<SandboxStory>;
  /**
   * Deletes the sandbox; resolves when the sandbox was observed to be gone. Throws `deadline` after two minutes, while
   * the server keeps trying.
   */
  delete(options?: DeleteOptions): Promise<SandboxInfo>;
}

/** Checkpoints of a sandbox. They are deleted with the sandbox. */
export interface Checkpoints {
  /**
   * Copies the sandbox's files and, if `info.standbyKind` is `memory`, its memory. Meanwhile the sandbox is frozen and
   * calls to it are held. Resolves when the checkpoint is stored and the sandbox is proven to serve again. Throws
   * `checkpoint_failed` if the checkpoint is not possible; the sandbox then keeps running.
   *
   * If the response is lost, only a request with a `name` is retried, because a name is never used twice. After such a
   * retry, a `checkpoint_exists` error with `dispatched: "unknown"` may refer to the checkpoint that this call created.
   */
  create(options?: CheckpointOptions): Promise<Checkpoint>;
  /** Lists checkpoints, oldest first. Does not wake the sandbox. */
  list(options?: CallOptions): Promise<Checkpoint[]>;
  /** Deletes a checkpoint. Sandboxes created from it have their own copy. */
  delete(idOrName: string, options?: CallOptions): Promise<void>;
}

export interface CheckpointOptions extends CallOptions {
  /** A DNS label, unique among the sandbox's checkpoints; generated if absent. */
  name?: string | undefined;
}

/** A program that listens on a port of a sandbox's loopback interface. */
export interface SandboxPort {
  readonly number: number;
  /**
   * Sends a request to the program, like `fetch`, and returns its response, whatever the status; both bodies may be
   * streams. Wakes a sandbox in standby. Throws if the program sent no response: `port_closed` (no program listens),
   * `port_cut` (the connection closed before the response; check `dispatched`), `port_silent` (no response in time), or
   * any error of other calls. A response body that is cut throws while it is read.
   *
   * GET, HEAD and OPTIONS without a body are retried, by the server and by the client. The API key is sent in a
   * separate header that is not forwarded, so you can send the program's own `Authorization` header. Redirects are
   * returned, not followed: the program chooses their target, and the key must not be sent there.
   *
   * @example
   * const response = await box.port(3000).fetch("/api/items?limit=10");
   */
  fetch(path: string, init?: Omit<RequestInit, "redirect">): Promise<Response>;
  /**
   * Returns the URL of a path on the port. Requests to it need the API key; use previews for clients without the key.
   */
  url(path?: string): string;
}

/**
 * Previews: ports that can be reached without the API key. A private preview needs a token, which its URL contains; a
 * public preview is open to everyone. A preview grants access to one port only. None of these calls wakes the sandbox;
 * a request to a preview does.
 */
export interface Previews {
  /**
   * Creates a preview. The result has two URLs: `url` with a host name of the preview's own, and `pathUrl` for clients
   * that cannot resolve that host name. The token is returned only once. Safe against lost responses: one call creates
   * one preview. Only a `preview_exists` error with `dispatched: "unknown"` may refer to the preview that this call
   * created.
   *
   * @example
   * const { url } = await box.previews.create(3000, { ttlMs: 3_600_000 });
   */
  create(port: number, options?: PreviewOptions): Promise<Preview>;
  /** Lists previews, oldest first, without tokens. */
  list(options?: CallOptions): Promise<Preview[]>;
  get(idOrName: string, options?: CallOptions): Promise<Preview>;
  /** Deletes a preview and closes open connections through it. */
  delete(idOrName: string, options?: CallOptions): Promise<void>;
  /**
   * Creates another token, with URLs that contain it. Not retried if the response is lost, because each request creates
   * a token.
   */
  createToken(idOrName: string, options?: TokenOptions): Promise<PreviewToken>;
  /** Lists the tokens of a preview, without their secrets. */
  tokens(idOrName: string, options?: CallOptions): Promise<PreviewTokenInfo[]>;
  /** Revokes a token and closes open connections made with it. */
  deleteToken(idOrName: string, tokenId: string, options?: CallOptions): Promise<void>;
}

export interface PreviewOptions extends CallOptions {
  /** A DNS label, unique among the sandbox's previews; generated if absent. */
  name?: string | undefined;
  /** Whether everyone can reach the port, without a token. Default false. */
  public?: boolean | undefined;
  /** How long the preview grants access. Default: as long as the sandbox exists. */
  ttlMs?: number | undefined;
  /** How long the returned token is valid. Default one day. */
  tokenTtlMs?: number | undefined;
}

export interface TokenOptions extends CallOptions {
  /** How long the token is valid. Default one day, and never longer than the preview. */
  ttlMs?: number | undefined;
}

export interface MountOptions extends CallOptions {
  /** The directory of the drive to mount; created if missing. Default: the whole drive. */
  subpath?: string | undefined;
  readOnly?: boolean | undefined;
}

/** Persistent directories that any number of sandboxes can mount at the same time. Drives outlive sandboxes. */
export interface Drives {
  /**
   * Creates a drive; resolves once it can be mounted. Safe against lost responses: one call creates one drive. Only a
   * `drive_exists` error with `dispatched: "unknown"` may refer to the drive that this call created; `getOrCreate`
   * avoids that case.
   */
  create(options?: CreateDrive & CallOptions): Promise<Drive>;
  /** Returns the drive of that name, or creates it. Throws `drive_exists` if the existing drive has another size. */
  getOrCreate(options: CreateDrive & { name: string } & CallOptions): Promise<Drive>;
  /** Returns a handle to a drive, by id or name. Measures the drive's usage, unless the measurement takes too long. */
  get(ref: string, options?: CallOptions): Promise<Drive>;
  /** Lists drives in order of creation, each with its last measured usage. */
  list(filter?: DriveFilter): Promise<Page<DriveInfo>>;
  /** Deletes a drive by id or name, like `delete` of its handle. */
  delete(ref: string, options?: DeleteDriveOptions): Promise<void>;
}

/** A handle to a drive. It needs no disposal: a drive exists until it is deleted explicitly. */
export interface Drive {
  readonly id: string;
  readonly name: string;
  /** The state as of the last response; `refresh` updates it. */
  readonly info: DriveInfo;
  /**
   * The drive's files, which can be accessed without a sandbox. `/` is the root of the drive. Sandboxes that mount the
   * drive see the same files.
   */
  readonly files: Files;
  refresh(options?: CallOptions): Promise<DriveInfo>;
  /** Changes labels; absent labels stay unchanged, null removes a label. */
  update(changes: UpdateDrive & CallOptions): Promise<DriveInfo>;
  /** Lists the drive's events, oldest first. */
  events(options?: EventFilter): Promise<Page<Event>>;
  /**
   * Deletes the drive and its files; resolves once nothing of it is left. Throws `deadline` after two minutes; the
   * server keeps trying. Throws `drive_mounted` if a sandbox, awake or in standby, mounts it; the message names the
   * sandbox.
   */
  delete(options?: DeleteDriveOptions): Promise<void>;
}

export interface DriveFilter extends PageOptions {
  labels?: Record<string, string> | undefined;
}

export interface DeleteDriveOptions extends CallOptions {
  /**
   * Whether to detach the drive from sandboxes that mount it. Each of these sandboxes stays degraded until the drive's
   * path in it is unmounted. Default false.
   */
  force?: boolean | undefined;
}

export interface DeleteOptions extends CallOptions {
  /** How long processes may take to end after SIGTERM. Default 0: they are killed immediately. */
  graceMs?: number | undefined;
}

/** A point in time: a `Date`, or ISO 8601 text with an offset. */
export type Moment = Date | string;

export interface EventFilter extends PageOptions {
  types?: readonly EventType[] | undefined;
  /** Only events of the exec with this id. */
  exec?: string | undefined;
  /** Only events from `since` (inclusive) to `until` (exclusive). */
  since?: Moment | undefined;
  until?: Moment | undefined;
  /** Which events come first. Default: the oldest. */
  order?: "oldest" | "newest" | undefined;
}

/** Limits the events to those of one subject. */
export interface EventSubject {
  /** Name or id; a deleted sandbox must be given by id. */
  sandbox?: string | undefined;
  drive?: string | undefined;
}

/** The timeline: the events of sandboxes, execs, drives and the server, for as long as they are kept. */
export interface Events {
  /** Lists events, oldest first by default. */
  list(filter?: EventFilter & EventSubject): Promise<Page<Event>>;
  /**
   * Yields past events and then new events as they happen, until `until` or forever. Past events start at `cursor` or
   * `since`; if neither is given, there are none. Reconnects automatically: across lost connections and server restarts
   * each event is yielded once, in order of `seq`.
   *
   * @example
   * for await (const event of holdfast.events.follow({ sandbox: box.id })) console.log(event.type, event.message);
   */
  follow(options?: FollowOptions): AsyncIterable<Event>;
}

export interface FollowOptions extends CallOptions, EventSubject {
  types?: readonly EventType[] | undefined;
  exec?: string | undefined;
  since?: Moment | undefined;
  until?: Moment | undefined;
  /** The `seq` of the last event seen, as text. `0` starts at the oldest event kept. */
  cursor?: string | undefined;
  /**
   * What to do if events were deleted before they were read: throw an `EventsDroppedError`, or continue with the oldest
   * event kept. Default: throw.
   */
  onDropped?: "throw" | "skip" | undefined;
  /**
   * Called with `open` when a connection is established; from then on no event is missed. Called with `lost` when the
   * connection breaks; the client then tries to reconnect for up to `outageMs`.
   */
  onConnection?: ((state: "open" | "lost") => void) | undefined;
}

/** Alerts about the server as a whole, or about a sandbox with a lasting problem. */
export interface Alerts {
  /** Lists firing alerts and, with `cleared`, recently cleared ones. */
  list(options?: CallOptions & { cleared?: boolean | undefined }): Promise<AlertList>;
  /** Lists sent and pending webhook deliveries, newest first. */
  deliveries(filter?: PageOptions & { state?: DeliveryState | undefined }): Promise<Page<Delivery>>;
  /** Sends a dead delivery again. */
  retry(id: string, options?: CallOptions): Promise<Delivery>;
}

export interface LogFilter extends PageOptions {
  /** Name or id; a deleted sandbox must be given by id. */
  sandbox?: string | undefined;
  drive?: string | undefined;
  exec?: string | undefined;
  /** The `requestId` of an error, or the `x-request-id` header of a response. */
  request?: string | undefined;
  /** Only lines of this level or more severe. */
  level?: LogLevel | undefined;
  /** Only lines that contain this text, ignoring case. */
  text?: string | undefined;
  since?: Moment | undefined;
  until?: Moment | undefined;
}

export interface DiagnoseOptions extends CallOptions {
  /** How long the sandbox is observed, at most 10 s. Default 3 s. */
  windowMs?: number | undefined;
}

export interface ExecOptions extends WaitOptions {
  /** Id of the exec. Starting an existing id follows that exec: the command never runs twice. Generated if absent. */
  id?: string | undefined;
  env?: Record<string, string> | undefined;
  cwd?: string | undefined;
  /** Default: uid 1000. */
  user?: string | undefined;
  /** Time after which the command and all its processes are killed; the status is then `timed_out`. */
  timeoutMs?: number | undefined;
  /** Text for the command's stdin, followed by end of file. */
  stdin?: string | undefined;
  /**
   * Whether the command keeps the sandbox awake. Default true. If false, the command is frozen with the sandbox in
   * standby and continues after the wake. While the command is frozen, its `info.suspended` is true, and waiting for
   * the command or reading its output does not wake the sandbox.
   */
  keepAwake?: boolean | undefined;
  /** Action taken once after every wake, so that the command learns that its connections are gone. */
  onWake?: OnWake | undefined;
}

/** Either a signal to the command's process group, such as `SIGHUP`, or another command to run. */
export type OnWake = { signal: string } | { argv: readonly string[] };

export interface StartOptions extends ExecOptions {
  /** Whether stdin stays open for `writeStdin`. */
  openStdin?: boolean | undefined;
  /** Gives the command a terminal of this size. All output of the command is then stdout, and `write` sends input. */
  tty?: TerminalSize | undefined;
  /**
   * Whether a reader will follow the output from the start. Until that reader connects, for at most 10 s, the command
   * waits instead of dropping output. Meant for commands that may write more than a journal holds before a reader can
   * connect. Not available on a terminal.
   */
  awaitReader?: boolean | undefined;
}

/** The size of a terminal, in characters. */
export interface TerminalSize {
  cols: number;
  rows: number;
}

/** An exec that has ended, with at most 1 MiB of output per stream; `output()` yields all output, byte for byte. */
export type ExecResult = Exec & Required<Pick<Exec, "stdout" | "stderr">>;

export interface Execs {
  /** Starts a command; resolves once it runs or, if too many execs are running, is `queued`. */
  start(command: string | readonly string[], options?: StartOptions): Promise<ExecRun>;
  /** Returns a handle to any exec, running or ended. */
  get(id: string, options?: CallOptions): Promise<ExecRun>;
  /** Lists execs, newest first. */
  list(options?: PageOptions): Promise<Page<Exec>>;
}

/** A handle to an exec. The exec does not depend on the handle or its connection: `execs.get` returns a new handle. */
export interface ExecRun {
  readonly id: string;
  /** The state as of the last response. */
  readonly info: Exec;
  /** The position after the last chunk that `output` of this handle yielded; null before the first chunk. */
  readonly cursor: string | null;
  /**
   * Yields the output from the beginning, or from a cursor, to the end. Reconnects automatically, without gaps or
   * repetition.
   */
  output(options?: OutputOptions): AsyncIterable<OutputChunk>;
  /** Waits until the command ends and returns its result. */
  result(options?: WaitOptions): Promise<ExecResult>;
  /** Kills the command and all its processes, and waits until they are gone. */
  cancel(options?: CallOptions): Promise<Exec>;
  /** Sends a signal, such as `SIGINT`, to the command. */
  signal(name: string, options?: CallOptions): Promise<Exec>;
  /**
   * Writes to stdin; requires `openStdin`. Resolves once all bytes were accepted. Every byte arrives exactly once, even
   * across reconnects, as long as only one handle writes at a time. `end` closes stdin afterwards.
   */
  writeStdin(content: Content, options?: StdinOptions): Promise<void>;
  /**
   * Sends input to a terminal, after input from other handles. If the connection breaks while a piece of input is sent,
   * the piece is not sent again, because it may have arrived: `dispatched` of the error says whether it may have.
   */
  write(content: Content, options?: StdinOptions): Promise<void>;
  /** Changes the size of the exec's terminal. */
  resize(size: TerminalSize, options?: CallOptions): Promise<Exec>;
}

/** Named, supervised processes of a sandbox. The server restarts them according to their restart policy. */
export interface Processes {
  /**
   * Starts a process; resolves when it is recorded and starting. Use `ready` of the handle to wait until it is ready.
   * If a process of that name is already active, the result depends on its settings: with the same settings, it is
   * returned; with other settings, `process_conflict` is thrown.
   *
   * @example
   * const web = await box.processes.start("web", ["node", "server.js"], {
   *   restart: { on: "always" },
   *   readyWhen: { port: 3000 },
   * });
   * await web.ready();
   */
  start(name: string, command: string | readonly string[], options?: ProcessOptions): Promise<ProcessHandle>;
  /** Lists processes, oldest first, including ended ones. Does not wake the sandbox. */
  list(options?: CallOptions): Promise<Process[]>;
  /** Returns a handle to a process, by name or id. */
  get(nameOrId: string, options?: CallOptions): Promise<ProcessHandle>;
  /**
   * Stops a process without restarting it. Resolves when its command and all child processes of the command have ended.
   * No-op if the process has already ended.
   */
  stop(nameOrId: string, options?: CallOptions): Promise<Process>;
  /** Ends the current run, if any, and starts the next one immediately. Never retried automatically. */
  restart(nameOrId: string, options?: CallOptions): Promise<Process>;
}

export interface ProcessOptions extends CallOptions {
  env?: Record<string, string> | undefined;
  cwd?: string | undefined;
  user?: string | undefined;
  /** Timeout of each run. */
  timeoutMs?: number | undefined;
  tty?: TerminalSize | undefined;
  /**
   * Whether the process keeps the sandbox awake. Default false: the process is frozen in standby and continues after
   * the wake.
   */
  keepAwake?: boolean | undefined;
  onWake?: OnWake | undefined;
  /** Restart policy. Default: the process is not restarted. */
  restart?: StartProcess["restart"] | undefined;
  /** Condition that each run must meet to be ready. Default: a run is ready when it has started. */
  readyWhen?: StartProcess["readyWhen"] | undefined;
  /**
   * A port, and a time after each wake within which a program must listen on it. Otherwise the process is `unready`
   * with a cause.
   */
  connectBy?: StartProcess["connectBy"] | undefined;
}

/** A handle to a named process. The process does not depend on the handle: `processes.get` returns a new one. */
export interface ProcessHandle {
  readonly id: string;
  readonly name: string;
  /** The state as of the last response; `refresh` updates it. */
  readonly info: Process;
  refresh(options?: CallOptions): Promise<Process>;
  /**
   * Waits until the process is ready, across restarts of the process and of the server. Throws `ProcessNotReadyError`
   * if the process ended, was not ready in time, or waiting was given up. The error contains the process, with the
   * cause.
   */
  ready(options?: WaitOptions): Promise<Process>;
  /** Lists the runs, newest first. Each run is an exec with its own outcome and output. */
  runs(options?: PageOptions): Promise<Page<Exec>>;
  /** Yields the output of the latest run from its beginning, then of the following runs, until the process ends. */
  output(options?: ProcessOutputOptions): AsyncIterable<ProcessChunk>;
  stop(options?: CallOptions): Promise<Process>;
  restart(options?: CallOptions): Promise<Process>;
}

export interface ProcessOutputOptions extends Omit<OutputOptions, "cursor"> {}

export interface ProcessChunk extends OutputChunk {
  /** The run that wrote the chunk. */
  readonly execId: string;
}

export interface StdinOptions extends WaitOptions {
  /** Whether to close stdin afterwards. On a terminal, the end-of-file character is sent instead. */
  end?: boolean | undefined;
}

export interface OutputOptions extends WaitOptions {
  /** Where to start: the `cursor` of the last chunk read. */
  cursor?: string | undefined;
  /**
   * Whether to continue with new output as it is written. If false, yields only the output written so far. Default
   * true.
   */
  follow?: boolean | undefined;
  /** Yields only stdout or only stderr. A cursor remains a position in the combined output of both. */
  stream?: "stdout" | "stderr" | undefined;
  /**
   * What to do if output was dropped before it was read, because the command wrote more than a journal holds: throw an
   * `OutputDroppedError`, or continue with the oldest output kept. Default: throw.
   */
  onDropped?: "throw" | "skip" | undefined;
  /**
   * Whether the command waits for this reader when the journal is full of output that this reader has not taken. If
   * false, the oldest output is dropped instead. Even if true, the command waits only for a bounded time while the
   * reader takes nothing. Has an effect only while the reader follows the output. Default: true; but false if
   * `onDropped` is "skip", for a command on a terminal, and for a named process.
   */
  hold?: boolean | undefined;
  /**
   * Called with `lost` when the connection breaks, and with `back` when it is established again. The client tries to
   * reconnect for up to `outageMs`.
   */
  onConnection?: ((state: "lost" | "back") => void) | undefined;
}

export interface OutputChunk {
  readonly stream: "stdout" | "stderr";
  readonly data: Uint8Array;
  /** The data decoded as UTF-8; a character split by the end of the chunk is part of the next chunk of its stream. */
  readonly text: string;
  /** The position at the end of this chunk: reading from this cursor continues with the next chunk. */
  readonly cursor: string;
  readonly at: string;
  /** Whether output between the previous chunk and this one was skipped (`onDropped`). */
  readonly dropped: boolean;
}

/** Content for a file or for stdin. Streams, including `ReadableStream`, are sent as they arrive. */
export type Content = string | Uint8Array | AsyncIterable<string | Uint8Array>;

/** The files of a sandbox or drive, by absolute path. */
export interface Files {
  /**
   * Reads a file. Reading calls (`read`, `list`, `stat`, `search`, `pack`) do not wake a sandbox for files on its disk.
   */
  read(path: string, options?: RangeOptions): Promise<Uint8Array>;
  readText(path: string, options?: RangeOptions): Promise<string>;
  readStream(path: string, options?: RangeOptions): Promise<AsyncIterable<Uint8Array>>;
  /**
   * Writes a file atomically: readers see the old or the new content. Creates missing directories unless `parents` is
   * false.
   */
  write(path: string, content: Content, options?: WriteOptions): Promise<FileStat>;
  list(path: string, options?: ReadOptions & { limit?: number | undefined }): Promise<FileList>;
  stat(path: string, options?: ReadOptions): Promise<FileStat>;
  exists(path: string, options?: ReadOptions): Promise<boolean>;
  /** Creates a directory and missing parents. No-op if the directory exists. */
  mkdir(path: string, options?: CallOptions & { mode?: string | undefined }): Promise<FileStat>;
  remove(path: string, options?: CallOptions & { recursive?: boolean | undefined }): Promise<void>;
  move(
    from: string,
    to: string,
    options?: CallOptions & { overwrite?: boolean | undefined },
  ): Promise<FileStat>;
  /**
   * Searches below a directory by name and content, nearest entries first. Does not follow symbolic links. The search
   * stops at limits on results, time, entries and bytes; `truncated` is then true.
   */
  search(path: string, options?: SearchOptions): Promise<FileSearch>;
  /**
   * Returns a file, or a directory with everything below it, as a tar archive: files, directories and symbolic links,
   * with modes, owners and times. If the archive cannot be completed, reading it throws.
   */
  pack(path: string, options?: ReadOptions): Promise<AsyncIterable<Uint8Array>>;
  /**
   * Extracts a tar archive, optionally gzipped, into a directory, which is created if missing. Modes and times come
   * from the archive; new entries belong to UID 1000. Throws at the first entry that is not allowed; earlier entries
   * stay extracted.
   */
  unpack(
    path: string,
    archive: Uint8Array | AsyncIterable<Uint8Array>,
    options?: CallOptions,
  ): Promise<Unpacked>;
  /**
   * Watches a directory or file. Resolves when the watch is active; from then on the iterable yields every change. The
   * watch survives lost connections and server restarts: an `overflow` reports that changes may have been missed, so
   * list the directory again. A watch keeps an idle sandbox out of standby, and wakes a sandbox that is put in standby
   * on request. To end the watch, leave the loop.
   *
   * @example
   * for await (const { kind, path } of await box.files.watch("/workspace", { recursive: true })) console.log(kind, path);
   */
  watch(path: string, options?: WatchOptions): Promise<AsyncIterable<FileChange>>;
}

export interface SearchOptions extends ReadOptions {
  /** A glob for names or, if it contains a slash, for paths below the directory. `*` does not match a leading dot. */
  name?: string | undefined;
  /** Text that a line of the file must contain. */
  content?: string | undefined;
  /** Whether `content` is a regular expression. */
  regex?: boolean | undefined;
  ignoreCase?: boolean | undefined;
  /** Number of lines returned before and after each match, at most 50. */
  contextLines?: number | undefined;
  /** Names of directories to skip. */
  exclude?: readonly string[] | undefined;
  /** Maximum number of results, at most 10000. Default 1000. */
  limit?: number | undefined;
}

export interface WatchOptions extends CallOptions {
  /** Whether to watch everything below the directory too. */
  recursive?: boolean | undefined;
}

export interface ReadOptions extends CallOptions {
  /**
   * Whether to wake the sandbox for a path that exists only while it is awake (on tmpfs, in `/proc` or `/dev`). If
   * false, such a path throws `not_on_disk`. Default true.
   */
  wake?: boolean | undefined;
}

export interface RangeOptions extends ReadOptions {
  offset?: number | undefined;
  length?: number | undefined;
}

export interface WriteOptions extends CallOptions {
  /** Permissions in octal, such as "0755". */
  mode?: string | undefined;
  parents?: boolean | undefined;
}

export interface Images {
  list(options?: CallOptions): Promise<Image[]>;
  /** Creates an image from a tar archive of a root file system, optionally gzipped. */
  import(name: string, tar: Uint8Array | AsyncIterable<Uint8Array>, options?: CallOptions): Promise<Image>;
  remove(name: string, options?: CallOptions): Promise<void>;
}

export interface CleanupOptions extends CallOptions {
  /** Whether to only report what would be removed. */
  dryRun?: boolean | undefined;
  /** Whether to also delete disposable sandboxes that have no exec in progress. */
  emergency?: boolean | undefined;
}

export type { CreateDrive, CreateSandbox, MountDrive, StartExec, UpdateDrive, UpdateSandbox };
