/**
 * Everything a user of the SDK calls, in one place. Every method takes an `AbortSignal`; aborting ends the waiting
 * and throws the signal's reason, it does not undo what was asked for. Every failure is a `HoldfastError`.
 */
import type {
  CreateSandbox,
  Event,
  EventType,
  Exec,
  FileList,
  FileStat,
  Image,
  Proof,
  Sandbox as SandboxInfo,
  SandboxStatus,
  StartExec,
} from "./types.generated.ts";

export interface CallOptions {
  signal?: AbortSignal | undefined;
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
  /** Sends requests through this instead of node:http. */
  fetch?: typeof globalThis.fetch | undefined;
}

export interface Sandboxes {
  /** Resolves once the sandbox is proven to execute and to serve files. Safe against lost answers. */
  create(options?: CreateSandbox & CallOptions): Promise<Sandbox>;
  /** The live sandbox of that name, made if there is none. */
  getOrCreate(options: CreateSandbox & { name: string } & CallOptions): Promise<Sandbox>;
  /** By id or name. */
  get(ref: string, options?: CallOptions): Promise<Sandbox>;
  list(filter?: SandboxFilter): Promise<Page<SandboxInfo>>;
}

export interface SandboxFilter extends PageOptions {
  status?: readonly SandboxStatus[] | undefined;
  labels?: Record<string, string> | undefined;
}

/** A handle. `await using` deletes the sandbox, verified, if this handle created it; otherwise it only lets go. */
export interface Sandbox extends AsyncDisposable {
  readonly id: string;
  readonly name: string;
  /** As of the last answer; `refresh` gets a new one. */
  readonly info: SandboxInfo;
  readonly execs: Execs;
  readonly files: Files;
  /**
   * Runs a command and waits for its end, however long that takes: a string by `/bin/sh -c`, an array as it is.
   * A non-zero exit, a timeout or a lost exec is data; it throws only where the command could not be run.
   */
  exec(command: string | readonly string[], options?: ExecOptions): Promise<ExecResult>;
  refresh(options?: CallOptions): Promise<SandboxInfo>;
  /** A fresh proof now: every check, passed or not. */
  verify(options?: CallOptions): Promise<Proof>;
  /** What happened to the sandbox, oldest first. */
  events(options?: EventFilter): Promise<Page<Event>>;
  /** Resolves once its absence was observed; throws `deadline` after two minutes, while the server goes on trying. */
  delete(options?: DeleteOptions): Promise<SandboxInfo>;
}

export interface DeleteOptions extends CallOptions {
  /** Time for processes to end by themselves after SIGTERM. Default 0: they are killed. */
  graceMs?: number | undefined;
}

export interface EventFilter extends PageOptions {
  types?: readonly EventType[] | undefined;
}

export interface ExecOptions extends CallOptions {
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
}

export interface StartOptions extends ExecOptions {
  /** Leaves stdin open for `writeStdin`. */
  openStdin?: boolean | undefined;
}

/** An exec that has ended, with what it wrote (at most 1 MiB of each; `output()` has all of it, byte-exact). */
export type ExecResult = Exec & Required<Pick<Exec, "stdout" | "stderr">>;

export interface Execs {
  /** Resolves once the command runs. */
  start(command: string | readonly string[], options?: StartOptions): Promise<ExecRun>;
  /** A handle to any exec, running or ended, by its id. */
  get(id: string, options?: CallOptions): Promise<ExecRun>;
  /** Newest first. */
  list(options?: PageOptions): Promise<Page<Exec>>;
}

/** One command run. Losing the connection, or this handle, loses nothing of it. */
export interface ExecRun {
  readonly id: string;
  /** As of the last answer. */
  readonly info: Exec;
  /** What it writes, from the beginning or a cursor on, to the end. Reconnects by itself, without gap or repetition. */
  output(options?: OutputOptions): AsyncIterable<OutputChunk>;
  /** Waits for the end, however long that takes. */
  result(options?: CallOptions): Promise<ExecResult>;
  /** Kills the command and all it started, and waits for that. */
  cancel(options?: CallOptions): Promise<Exec>;
  /** Sends a signal, such as `SIGINT`. */
  signal(name: string, options?: CallOptions): Promise<Exec>;
  /** Needs `openStdin`. Resolves once all of it was taken; every byte arrives exactly once. `end` closes stdin. */
  writeStdin(data: string | Uint8Array, options?: CallOptions & { end?: boolean | undefined }): Promise<void>;
}

export interface OutputOptions extends CallOptions {
  cursor?: string | undefined;
  /** False: only what is there already. */
  follow?: boolean | undefined;
}

export interface OutputChunk {
  readonly stream: "stdout" | "stderr";
  readonly data: Uint8Array;
  /** As UTF-8; a character cut by the chunk's end comes with the next one of its stream. */
  readonly text: string;
  /** The position after this chunk. */
  readonly cursor: string;
  readonly at: string;
}

/** What can be written to a file or as an image: streams are sent as they come. */
export type Content = string | Uint8Array | AsyncIterable<string | Uint8Array>;

/** Files inside the sandbox, by absolute path. */
export interface Files {
  read(path: string, options?: RangeOptions): Promise<Uint8Array>;
  readText(path: string, options?: RangeOptions): Promise<string>;
  readStream(path: string, options?: RangeOptions): Promise<AsyncIterable<Uint8Array>>;
  /** Atomic: readers see the old content or the new one. Makes missing directories unless told not to. */
  write(path: string, content: Content, options?: WriteOptions): Promise<FileStat>;
  list(path: string, options?: CallOptions & { limit?: number | undefined }): Promise<FileList>;
  stat(path: string, options?: CallOptions): Promise<FileStat>;
  exists(path: string, options?: CallOptions): Promise<boolean>;
  /** With missing parents; an existing directory is fine. */
  mkdir(path: string, options?: CallOptions & { mode?: string | undefined }): Promise<FileStat>;
  remove(path: string, options?: CallOptions & { recursive?: boolean | undefined }): Promise<void>;
  move(
    from: string,
    to: string,
    options?: CallOptions & { overwrite?: boolean | undefined },
  ): Promise<FileStat>;
}

export interface RangeOptions extends CallOptions {
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

export type { CreateSandbox, StartExec };
