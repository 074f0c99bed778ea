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
} from "./api.ts";
import { type Calls, pause } from "./calls.ts";
import { CheckpointsOf } from "./checkpoints.ts";
import { HoldfastError, type Where } from "./errors.ts";
import { eventsOf } from "./events.ts";
import { ExecsOf, run } from "./execs.ts";
import { FilesOf } from "./files.ts";
import { PortOf } from "./port.ts";
import { PreviewsOf } from "./previews.ts";
import { ProcessesOf } from "./processes.ts";
import { backoff } from "./retry.ts";
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
} from "./types.generated.ts";

/** What one request of a delete may wait on the server, and how long they are repeated in all. */
const DELETE_WAIT_MS = 30_000;
const DELETE_PATIENCE_MS = 120_000;

/** How long memory may take to get onto the disk, and to come back. */
const STANDBY_WAIT_MS = 120_000;
const WAKE_WAIT_MS = 30_000;
/** The end of the old instance, a turn in line, and the start of a new one. */
const RESTART_WAIT_MS = 120_000;

/** How long a sandbox is looked at for a diagnosis, unless that is said. */
const DIAGNOSIS_WAIT_MS = 3_000;

/** What the server gives one mount, or unmount. */
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

  async refresh({ signal }: CallOptions = {}): Promise<SandboxInfo> {
    this.#info = await this.#calls.json({ method: "GET", path: this.#path(), idempotent: true, signal });
    return this.#info;
  }

  async update({ signal, ...changes }: UpdateSandbox & CallOptions): Promise<SandboxInfo> {
    const call = { method: "PATCH", path: this.#path(), json: changes, idempotent: true, signal } as const;
    this.#info = await this.#calls.json(call);
    return this.#info;
  }

  verify({ signal }: CallOptions = {}): Promise<Proof> {
    return this.#calls.json({ method: "POST", path: this.#path("verify"), idempotent: true, signal });
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

  /** Not idempotent: a second one would end what began after the first. */
  restart(options: CallOptions = {}): Promise<SandboxInfo> {
    return this.#turn("restart", RESTART_WAIT_MS, options, false);
  }

  async #turn(
    verb: string,
    waitMs: number,
    { signal }: CallOptions,
    idempotent = true,
  ): Promise<SandboxInfo> {
    const call = { method: "POST", path: this.#path(verb), idempotent, waitMs, signal } as const;
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

  /** Not idempotent: after a lost answer another drive may be there. */
  unmount(path: string, { signal }: CallOptions = {}): Promise<void> {
    return this.#calls.json({
      method: "DELETE",
      path: this.#path("mounts"),
      query: { path },
      idempotent: false,
      waitMs: MOUNT_WAIT_MS,
      signal,
    });
  }

  async mounts({ signal }: CallOptions = {}): Promise<Mount[]> {
    const call = { method: "GET", path: this.#path("mounts"), idempotent: true, signal } as const;
    return (await this.#calls.json<MountList>(call)).items;
  }

  events(filter: EventFilter = {}): Promise<Page<Event>> {
    return eventsOf(this.#calls).list({ ...filter, sandbox: this.id });
  }

  resources({ signal }: CallOptions = {}): Promise<ResourceReport> {
    return this.#calls.json({ method: "GET", path: this.#path("resources"), idempotent: true, signal });
  }

  diagnose({ windowMs, signal }: DiagnoseOptions = {}): Promise<Diagnosis> {
    const call = { method: "GET", path: this.#path("diagnosis"), query: { windowMs } } as const;
    return this.#calls.json({ ...call, idempotent: true, waitMs: windowMs ?? DIAGNOSIS_WAIT_MS, signal });
  }

  story({ limit, signal }: CallOptions & { limit?: number | undefined } = {}): Promise<SandboxStory> {
    const call = { method: "GET", path: this.#path("logs"), query: { limit } } as const;
    return this.#calls.json({ ...call, idempotent: true, signal });
  }

  async delete(options: DeleteOptions = {}): Promise<SandboxInfo> {
    await untilGone(this.#calls, this.id, options, (info) => {
      this.#info = info;
    });
    return this.#info;
  }

  /** A sandbox that someone else deleted is as gone as this wants it. */
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

/** Asks until the absence was observed, and tells what it learns. */
export async function untilGone(
  calls: Calls,
  id: string,
  { graceMs, signal }: DeleteOptions,
  learn: (info: SandboxInfo) => void,
): Promise<void> {
  const call = { method: "DELETE", path: `/v1/sandboxes/${encodeURIComponent(id)}` } as const;
  const waitMs = DELETE_WAIT_MS + (graceMs ?? 0);
  const giveUpAt = performance.now() + DELETE_PATIENCE_MS;
  for (let tries = 1; ; tries++) {
    const query = { graceMs };
    const info = await calls.json<SandboxInfo>({ ...call, query, idempotent: true, waitMs, signal });
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
    message: `The absence of sandbox ${name} was not observed yet${lease.lastError ? `: ${lease.lastError}` : ""}.`,
    hint: `The server goes on trying${lease.nextAttemptAt ? `, next at ${lease.nextAttemptAt}` : ""}.`,
    retryable: true,
    dispatched: "yes",
    status: 202,
    body: JSON.stringify(info),
    sandboxId: info.id,
  });
};
