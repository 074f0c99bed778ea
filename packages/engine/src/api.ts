/** What the engine offers. The server, and nothing else, is written against this. */
import type {
  CreateSandbox,
  EventList,
  EventType,
  Exec,
  ExecId,
  ExecList,
  FileList,
  FileStat,
  Labels,
  Proof,
  Sandbox,
  SandboxList,
  StartExec,
  Stats,
  Status,
  StreamRecord,
} from "@holdfast/contract";
import type { Images, ProcessInfo } from "./ports.ts";

export interface CreateOptions {
  /** False: answer as soon as the record is stored. */
  wait: boolean;
  idempotencyKey?: string | undefined;
  signal: AbortSignal;
}

export interface SandboxApi {
  /** Resolves with a proven sandbox (or, without `wait`, a stored one). `existed` tells 200 from 201. */
  create(input: CreateSandbox, options: CreateOptions): Promise<{ sandbox: Sandbox; existed: boolean }>;
  get(ref: string): Promise<Sandbox>;
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
  /** A fresh proof now. */
  verify(ref: string, signal: AbortSignal): Promise<Proof>;
  processes(ref: string, signal: AbortSignal): Promise<ProcessInfo[]>;
}

export interface ExecApi {
  /** Resolves once the exec was started, or ended at once; `followed` when the id already existed. */
  start(
    ref: string,
    input: StartExec,
    options: { idempotencyKey?: string | undefined; signal: AbortSignal },
  ): Promise<{ exec: Exec; followed: boolean }>;
  get(id: string): Promise<Exec>;
  /** The exec when it ended, or as it is after `waitMs`; with stdout and stderr. */
  wait(id: string, options: { waitMs: number; signal: AbortSignal }): Promise<Exec>;
  list(ref: string, page: { cursor?: string | undefined; limit: number }): Promise<ExecList>;
  /** `start`, output from the cursor on, keepalives, and with `follow` an `end`; without it, an `end` only if it has ended. */
  output(
    id: string,
    options: { cursor?: string | undefined; follow: boolean; signal: AbortSignal },
  ): AsyncIterable<StreamRecord>;
  writeStdin(
    id: string,
    chunk: { offset: number; data: Uint8Array; end: boolean },
    signal: AbortSignal,
  ): Promise<{ accepted: number }>;
  signal(id: string, signal: string, abort: AbortSignal): Promise<Exec>;
  /** Kills the tree and waits for the end. */
  cancel(id: string, signal: AbortSignal): Promise<Exec>;
}

export interface FileApi {
  stat(ref: string, path: string, signal: AbortSignal): Promise<FileStat>;
  list(ref: string, path: string, options: { limit: number }, signal: AbortSignal): Promise<FileList>;
  read(
    ref: string,
    path: string,
    range: { offset: number; length: number | null },
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
}

export interface EngineApi {
  readonly sandboxes: SandboxApi;
  readonly execs: ExecApi;
  readonly files: FileApi;
  readonly images: Images;
  events(filter: {
    ref?: string | undefined;
    execId?: ExecId | undefined;
    types?: readonly EventType[] | undefined;
    cursor?: string | undefined;
    limit: number;
  }): Promise<EventList>;
  stats(): Promise<Stats>;
  /** Empty when the engine can take work; otherwise why not. */
  unreadiness(): string[];
  /** Recovers what an earlier server left, then takes work. */
  start(): Promise<void>;
  /** Takes no more work, lets go of links; instances run on. */
  stop(): Promise<void>;
}
