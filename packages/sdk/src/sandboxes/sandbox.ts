import type {
  CallOptions,
  Checkpoints,
  DeleteOptions,
  DiagnoseOptions,
  EventFilter,
  ExecOptions,
  ExecResult,
  Execs,
  Files,
  MountOptions,
  Page,
  Previews,
  Processes,
  Sandbox,
  SandboxPort,
} from "../api.ts";
import { HoldfastError, type Where } from "../errors.ts";
import { eventsOf } from "../events.ts";
import { ExecsOf, run } from "../execs/execs.ts";
import { ProcessesOf } from "../execs/processes.ts";
import { FilesOf } from "../files/files.ts";
import { type Calls, pause } from "../transport/calls.ts";
import { backoff } from "../transport/retry.ts";
import type {
  Diagnosis,
  Event,
  Mount,
  MountList,
  Proof,
  ResourceReport,
  Sandbox as SandboxInfo,
  SandboxStory,
  UpdateSandbox,
} from "../types.generated.ts";
import { CheckpointsOf } from "./checkpoints.ts";
import { PortOf } from "./port.ts";
import { PreviewsOf } from "./previews.ts";

/** How long one delete request may wait on the server. */
const DELETE_WAIT_MS = 30_000;
/** How long the client repeats the delete request for a sandbox that is not yet gone. */
const DELETE_PATIENCE_MS = 120_000;

/** How long the server may take to save memory to disk. */
const STANDBY_WAIT_MS = 120_000;
/** How long the server may take to restore memory from disk. */
const WAKE_WAIT_MS = 30_000;
/**
 * How long the server may take for a restart: to stop the old instance, wait in the queue, and start a new instance.
 */
const RESTART_WAIT_MS = 120_000;

/** How long the server observes the sandbox for a diagnosis by default. */
const DIAGNOSIS_WAIT_MS = 3_000;

/** The server's deadline for one mount or unmount. */
const MOUNT_WAIT_MS = 60_000;

export class SandboxHandle implements Sandbox {
  readonly #calls: Calls;
  readonly #owned: boolean;
  #info: SandboxInfo;
  readonly execs: Execs;
  readonly files: Files;
  readonly checkpoints: Checkpoints;
  readonly previews: Previews;
  readonly processes: Processes;

  constructor(calls: Calls, info: SandboxInfo, owned: boolean) {
    this.#calls = calls;
    this.#info = info;
    this.#owned = owned;
    this.execs = new ExecsOf(calls, info.id);
    this.files = new FilesOf(calls, this.#path());
    this.checkpoints = new CheckpointsOf(calls, info.id);
    this.previews = new PreviewsOf(calls, info.id);
    this.processes = new ProcessesOf(calls, info.id);
  }

  get id(): string {
    return this.#info.id;
  }
  get name(): string {
    return this.#info.name;
  }
  get info(): SandboxInfo {
    return this.#info;
  }

  port(number: number): SandboxPort {
    return new PortOf(this.#calls, this.id, number);
  }

  exec(command: string | readonly string[], options: ExecOptions = {}): Promise<ExecResult> {
    return run(this.#calls, this.id, command, options);
  }

  async refresh({ signal, ...unknown }: CallOptions = {}): Promise<SandboxInfo> {
    this.#info = await this.#calls.json({
      method: "GET",
      path: this.#path(),
      idempotent: true,
      signal,
      unknown,
    });
    return this.#info;
  }

  async update({ signal, ...changes }: UpdateSandbox & CallOptions): Promise<SandboxInfo> {
    const call = { method: "PATCH", path: this.#path(), json: changes, idempotent: true, signal } as const;
    this.#info = await this.#calls.json(call);
    return this.#info;
  }

  verify({ signal, ...unknown }: CallOptions = {}): Promise<Proof> {
    return this.#calls.json({
      method: "POST",
      path: this.#path("verify"),
      idempotent: true,
      signal,
      unknown,
    });
  }

  pause(options: CallOptions = {}): Promise<SandboxInfo> {
    return this.#turn("pause", 0, options);
  }

  resume(options: CallOptions = {}): Promise<SandboxInfo> {
    return this.#turn("resume", 0, options);
  }

  standby(options: CallOptions = {}): Promise<SandboxInfo> {
    return this.#turn("standby", STANDBY_WAIT_MS, options);
  }

  wake(options: CallOptions = {}): Promise<SandboxInfo> {
    return this.#turn("wake", WAKE_WAIT_MS, options);
  }

  /**
   * Restarts the sandbox. The request is not repeated: a second restart would end commands that were started after the
   * first.
   */
  restart(options: CallOptions = {}): Promise<SandboxInfo> {
    return this.#turn("restart", RESTART_WAIT_MS, options, false);
  }

  async #turn(
    verb: string,
    waitMs: number,
    { signal, ...unknown }: CallOptions,
    idempotent = true,
  ): Promise<SandboxInfo> {
    const call = { method: "POST", path: this.#path(verb), idempotent, waitMs, signal, unknown } as const;
    this.#info = await this.#calls.json(call);
    return this.#info;
  }

  mount(drive: string, path: string, { signal, ...how }: MountOptions = {}): Promise<Mount> {
    return this.#calls.json({
      method: "PUT",
      path: this.#path("mounts"),
      json: { drive, path, ...how },
      idempotent: true,
      waitMs: MOUNT_WAIT_MS,
      signal,
    });
  }

  /**
   * Unmounts a drive. The request is not repeated: after a lost response, another drive may already be mounted at the
   * path.
   */
  unmount(path: string, { signal, ...unknown }: CallOptions = {}): Promise<void> {
    return this.#calls.json({
      method: "DELETE",
      path: this.#path("mounts"),
      query: { path },
      idempotent: false,
      waitMs: MOUNT_WAIT_MS,
      signal,
      unknown,
    });
  }

  async mounts({ signal, ...unknown }: CallOptions = {}): Promise<Mount[]> {
    const call = { method: "GET", path: this.#path("mounts"), idempotent: true, signal, unknown } as const;
    return (await this.#calls.json<MountList>(call)).items;
  }

  events(filter: EventFilter = {}): Promise<Page<Event>> {
    return eventsOf(this.#calls).list({ ...filter, sandbox: this.id });
  }

  resources({ signal, ...unknown }: CallOptions = {}): Promise<ResourceReport> {
    return this.#calls.json({
      method: "GET",
      path: this.#path("resources"),
      idempotent: true,
      signal,
      unknown,
    });
  }

  diagnose({ windowMs, signal, ...unknown }: DiagnoseOptions = {}): Promise<Diagnosis> {
    const call = { method: "GET", path: this.#path("diagnosis"), query: { windowMs } } as const;
    return this.#calls.json({
      ...call,
      idempotent: true,
      waitMs: windowMs ?? DIAGNOSIS_WAIT_MS,
      signal,
      unknown,
    });
  }

  story({
    limit,
    signal,
    ...unknown
  }: CallOptions & { limit?: number | undefined } = {}): Promise<SandboxStory> {
    const call = { method: "GET", path: this.#path("logs"), query: { limit } } as const;
    return this.#calls.json({ ...call, idempotent: true, signal, unknown });
  }

  async delete(options: DeleteOptions = {}): Promise<SandboxInfo> {
    await untilGone(this.#calls, this.id, options, (info) => {
      this.#info = info;
    });
    return this.#info;
  }

  /** Deletes the sandbox; succeeds if another client has already deleted it. */
  async [Symbol.asyncDispose](): Promise<void> {
    if (!this.#owned || this.#info.status === "terminated") return;
    try {
      await this.delete();
    } catch (error) {
      if (!(error instanceof HoldfastError && error.code === "sandbox_not_found")) throw error;
    }
  }

  #path(rest = ""): string {
    return `/v1/sandboxes/${this.id}${rest === "" ? "" : `/${rest}`}`;
  }
}

/** Repeats the delete until the server has observed that the sandbox is absent, and passes each state to `learn`. */
export async function untilGone(
  calls: Calls,
  id: string,
  { graceMs, signal, ...unknown }: DeleteOptions,
  learn: (info: SandboxInfo) => void,
): Promise<void> {
  const call = { method: "DELETE", path: `/v1/sandboxes/${encodeURIComponent(id)}` } as const;
  const waitMs = DELETE_WAIT_MS + (graceMs ?? 0);
  const giveUpAt = performance.now() + DELETE_PATIENCE_MS;
  for (let tries = 1; ; tries++) {
    const query = { graceMs };
    const info = await calls.json<SandboxInfo>({ ...call, query, idempotent: true, waitMs, signal, unknown });
    learn(info);
    if (info.status === "terminated") return;
    const delayMs = backoff(tries, Math.random());
    if (performance.now() + delayMs > giveUpAt) throw notYetGone(calls.where(call), info);
    await pause(delayMs, signal);
  }
}

const notYetGone = (where: Where, info: SandboxInfo): HoldfastError => {
  const { lease, name } = info;
  return new HoldfastError({
    ...where,
    code: "deadline",
    message: `Sandbox ${name} is not confirmed deleted yet${lease.lastError ? `: ${lease.lastError}` : ""}.`,
    hint: `The server keeps trying${lease.nextAttemptAt ? `, next at ${lease.nextAttemptAt}` : ""}.`,
    retryable: true,
    dispatched: "yes",
    status: 202,
    body: JSON.stringify(info),
    sandboxId: info.id,
  });
};
