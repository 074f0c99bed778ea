import type {
  CallOptions,
  DeleteOptions,
  EventFilter,
  ExecOptions,
  ExecResult,
  Execs,
  Files,
  Page,
  Sandbox,
} from "./api.ts";
import { type Calls, pause } from "./calls.ts";
import { HoldfastError } from "./errors.ts";
import { ExecsOf, run } from "./execs.ts";
import { FilesOf } from "./files.ts";
import { backoff } from "./retry.ts";
import type { Event, Proof, Sandbox as SandboxInfo } from "./types.generated.ts";

/** What one request of a delete may wait on the server, and how long they are repeated in all. */
const DELETE_WAIT_MS = 30_000;
const DELETE_PATIENCE_MS = 120_000;

export class SandboxHandle implements Sandbox {
  readonly #calls: Calls;
  readonly #owned: boolean;
  #info: SandboxInfo;
  readonly execs: Execs;
  readonly files: Files;

  constructor(calls: Calls, info: SandboxInfo, owned: boolean) {
    this.#calls = calls;
    this.#info = info;
    this.#owned = owned;
    this.execs = new ExecsOf(calls, info.id);
    this.files = new FilesOf(calls, info.id);
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

  exec(command: string | readonly string[], options: ExecOptions = {}): Promise<ExecResult> {
    return run(this.#calls, this.id, command, options);
  }

  async refresh({ signal }: CallOptions = {}): Promise<SandboxInfo> {
    this.#info = await this.#calls.json({ method: "GET", path: this.#path(), idempotent: true, signal });
    return this.#info;
  }

  verify({ signal }: CallOptions = {}): Promise<Proof> {
    return this.#calls.json({ method: "POST", path: this.#path("verify"), idempotent: true, signal });
  }

  events({ types, limit, cursor, signal }: EventFilter = {}): Promise<Page<Event>> {
    return this.#calls.json({
      method: "GET",
      path: "/v1/events",
      query: { sandbox: this.id, type: types, limit, cursor },
      idempotent: true,
      signal,
    });
  }

  async delete({ graceMs, signal }: DeleteOptions = {}): Promise<SandboxInfo> {
    const giveUpAt = performance.now() + DELETE_PATIENCE_MS;
    for (let tries = 1; ; tries++) {
      this.#info = await this.#calls.json({
        method: "DELETE",
        path: this.#path(),
        query: { graceMs },
        idempotent: true,
        waitMs: DELETE_WAIT_MS + (graceMs ?? 0),
        signal,
      });
      if (this.#info.status === "terminated") return this.#info;
      const delayMs = backoff(tries, Math.random());
      if (performance.now() + delayMs > giveUpAt) throw this.#notYetGone();
      await pause(delayMs, signal);
    }
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

  #notYetGone(): HoldfastError {
    const { lease } = this.#info;
    return new HoldfastError({
      ...this.#calls.where({ method: "DELETE", path: this.#path() }),
      code: "deadline",
      message: `The absence of sandbox ${this.name} was not observed yet${lease.lastError ? `: ${lease.lastError}` : ""}.`,
      hint: `The server goes on trying${lease.nextAttemptAt ? `, next at ${lease.nextAttemptAt}` : ""}.`,
      retryable: true,
      dispatched: "yes",
      status: 202,
      body: JSON.stringify(this.#info),
      sandboxId: this.id,
    });
  }
}
