import {
  type CreateSandbox,
  DEFAULT_IMAGE,
  DEFAULT_RESOURCES,
  type DriveId,
  HoldfastError,
  isHoldfastError,
  isName,
  type MountDrive,
  normalisePath,
} from "@holdfast/contract";
import type { Admission } from "../launch/admission.ts";
import { type Launcher, type LaunchOutcome, withinLaunch } from "../launch/launcher.ts";
import { within } from "../lib/deadline.ts";
import { type Digest, digestOf } from "../lib/digest.ts";
import { LiveSandbox } from "../live/live-sandbox.ts";
import type { SandboxRegistry } from "../live/sandbox-registry.ts";
import { errorOf, rootMessage } from "../model/keeper-errors.ts";
import type { CreateOptions } from "../ports/api.ts";
import type { EngineContext } from "../ports/context.ts";
import { type Commit, type Idempotency, StoreConflict } from "../ports/index.ts";
import type {
  ExecRecord,
  MountRecord,
  Origin,
  ProcessRecord,
  SandboxRecord,
  SandboxSpec,
  SavedCheckpoint,
} from "../ports/records.ts";
import type { Checkpoints } from "./checkpoints.ts";
import type { Deletion } from "./delete.ts";
import { forkedExecs, forkedProcesses, forkedSpec, originOf } from "./forks.ts";
import type { SandboxGate } from "./gate.ts";

interface CreateParts {
  registry: SandboxRegistry;
  admission: Admission;
  launcher: Launcher;
  gate: SandboxGate;
  checkpoints: Checkpoints;
  drives: { usable(id: DriveId, signal: AbortSignal): Promise<void> };
  mounts: {
    askAll(inputs: readonly MountDrive[]): { mounts: MountRecord[]; release(): void };
    ensure(live: LiveSandbox, inputs: readonly MountDrive[], signal: AbortSignal): Promise<void>;
  };
  deletion: Deletion;
  /** Registers an exec that a fork starts with. `processes.adopt` does the same for a process. */
  execs: { adopt(live: LiveSandbox, record: ExecRecord): unknown };
  processes: { adopt(live: LiveSandbox, record: ProcessRecord): unknown };
}

/** The sandbox that a create returns. `existed` is true if an earlier or concurrent create had created it. */
interface Created {
  live: LiveSandbox;
  existed: boolean;
}

/**
 * Maximum number of tries of a create. A create is tried again if another create took its name and has released it
 * since.
 */
const NAME_TRIES = 3;
const CLEANUP_WAIT_MS = 5_000;

/**
 * Creates sandboxes. A sandbox is admitted, then stored with its name and idempotency key in one commit, and then
 * launched. If another create gets the name or the key first, the create returns that sandbox or a conflict.
 */
export class Creation {
  readonly #context: EngineContext;
  readonly #parts: CreateParts;
  #cpus: Promise<number> | null = null;

  constructor(context: EngineContext, parts: CreateParts) {
    this.#context = context;
    this.#parts = parts;
  }

  create(input: CreateSandbox, options: CreateOptions): Promise<Created> {
    return this.#create(input, options, NAME_TRIES);
  }

  async #create(input: CreateSandbox, options: CreateOptions, tries: number): Promise<Created> {
    const digest = digestOf(input);
    const idempotency = keyOf(digest, options.idempotencyKey);
    const repeated = await this.#repeated(idempotency, digest);
    if (repeated !== null) return this.#existing(repeated, options);
    const fork = await this.#existingFork(input);
    if (fork !== null) return this.#existing(fork, options, input.mounts);
    const { fromCheckpoint } = input;
    const source = fromCheckpoint === undefined ? null : await this.#parts.checkpoints.source(fromCheckpoint);
    const { onProgress, owner = null, beyondHost = false } = options;
    let live: LiveSandbox;
    try {
      if (!beyondHost && !(await this.#isHeld(input))) await this.#parts.admission.checkSize(input.resources);
      live = await this.#acceptWithDrives(input, source?.saved ?? null, owner, idempotency, options.signal);
    } catch (error) {
      source?.release();
      if (isHoldfastError(error)) throw error;
      const again = () => this.#create(input, options, tries - 1);
      return this.#lostRace(error, input, { idempotency, digest, options, again: tries > 1 ? again : null });
    }
    const unsubscribe = onProgress && live.onProgress(onProgress);
    live.progress("accepted");
    const launch = this.#parts.launcher.launch(live).finally(() => {
      source?.release();
      unsubscribe?.();
    });
    return options.wait ? this.#launched(live, launch, options.signal) : { live, existed: false };
  }

  /** Returns once the sandbox is proven. Rejects with `launch_failed` if the launch failed. */
  async #launched(live: LiveSandbox, launch: Promise<LaunchOutcome>, signal: AbortSignal): Promise<Created> {
    const result = await withinLaunch(this.#context, live, signal, () => launch);
    if (result.outcome === "failed" && live.record.phase.name === "failed") {
      await this.#cleanedUp(live);
      throw new HoldfastError("launch_failed", {
        sandboxId: live.id,
        message: `The sandbox could not be started: ${rootMessage(result.cause)}`,
        cause: errorOf(result.cause),
      });
    }
    await this.#parts.gate.pass(live, signal);
    return { live, existed: false };
  }

  /** Returns an existing sandbox once it serves and the requested drives are mounted in it. */
  async #existing(
    live: LiveSandbox,
    { wait, signal }: CreateOptions,
    mounts: readonly MountDrive[] = [],
  ): Promise<Created> {
    if (!wait && mounts.length === 0) return { live, existed: true };
    await this.#parts.gate.pass(live, signal);
    await this.#parts.mounts.ensure(live, mounts, signal);
    // Another caller may have suspended the sandbox while the drives were mounted, so the gate is passed again.
    if (mounts.length > 0) await this.#parts.gate.pass(live, signal);
    return { live, existed: true };
  }

  /**
   * Waits a moment for the reaper, so that in most cases nothing of a failed sandbox is left when its create returns.
   */
  async #cleanedUp(live: LiveSandbox): Promise<void> {
    const limit = { ms: CLEANUP_WAIT_MS, what: "cleaning up" };
    await within(this.#context.clock, limit, (signal) =>
      live.until(() => live.record.lease.state === "none", signal),
    ).catch(() => undefined);
  }

  // ── Acceptance ─────────────────────────────────────────────────────────────────────────────────────────────────

  /** Accepts the sandbox while its drives are pinned, so that none can be deleted before its mount is stored. */
  async #acceptWithDrives(
    input: CreateSandbox,
    saved: SavedCheckpoint | null,
    owner: string | null,
    idempotency: Idempotency | undefined,
    signal: AbortSignal,
  ): Promise<LiveSandbox> {
    const { mounts, release } = this.#parts.mounts.askAll(input.mounts ?? []);
    try {
      for (const { driveId } of mounts) await this.#parts.drives.usable(driveId, signal);
      return await this.#accept(input, { saved, mounts }, owner, idempotency);
    } finally {
      release();
    }
  }

  /**
   * Stores the sandbox with the execs that exist in it from the start. Refusals are typed errors; errors of the store
   * are passed to the caller.
   */
  async #accept(
    input: CreateSandbox,
    { saved, mounts }: { saved: SavedCheckpoint | null; mounts: readonly MountRecord[] },
    owner: string | null,
    idempotency: Idempotency | undefined,
  ): Promise<LiveSandbox> {
    const { store, ids } = this.#context;
    const { admission, launcher, registry } = this.#parts;
    const spec = saved === null ? await this.#spec(input) : forkedSpec(saved, checkName(input));
    await admission.admit(owner);
    admission.checkCaps(owner);
    launcher.admit();
    const origin = saved === null ? null : originOf(saved, ids);
    const record = { ...this.#record(input.name ?? ids.name(), spec, owner, origin), mounts };
    const execs = saved === null ? [] : forkedExecs(record, saved, record.createdAt);
    const processes = saved === null ? [] : forkedProcesses(record, saved, record.createdAt);
    // The sandbox is registered before it is stored, so that it counts against the limits on the number of sandboxes.
    const live = new LiveSandbox(this.#context, record);
    registry.add(live);
    try {
      await store.commit(acceptance(record, { execs, processes }, idempotency));
    } catch (error) {
      registry.drop(live);
      throw error;
    }
    for (const process of processes) this.#parts.processes.adopt(live, process);
    for (const exec of execs) this.#parts.execs.adopt(live, exec);
    return live;
  }

  async #spec(asked: CreateSandbox): Promise<SandboxSpec> {
    const input = checkName(asked);
    const image = input.image ?? DEFAULT_IMAGE;
    if ((await this.#context.images.get(image)) === null) {
      throw new HoldfastError("image_not_found", { message: `There is no image ${JSON.stringify(image)}.` });
    }
    const cwd = input.cwd === undefined ? null : normalisePath(input.cwd);
    if (input.cwd !== undefined && cwd === null)
      throw new HoldfastError("invalid_path", { message: "cwd must be an absolute path without '..'." });
    return {
      image,
      env: input.env ?? {},
      cwd,
      resources: { ...DEFAULT_RESOURCES, cpus: await this.#hostCpus(), ...input.resources },
      lifecycle: input.lifecycle ?? {},
      labels: input.labels ?? {},
    };
  }

  /**
   * Returns the number of the host's CPUs, which is the default for a sandbox's `cpus`. With this default a sandbox may
   * use all idle CPUs; when CPUs are short, all sandboxes have equal shares.
   */
  async #hostCpus(): Promise<number> {
    const { clock, driver, numbers } = this.#context;
    this.#cpus ??= within(clock, { ms: numbers.keeperCallMs, what: "measuring the host" }, (signal) =>
      driver.capacity(signal),
    ).then(({ cpus }) => cpus);
    return this.#cpus.catch(() => {
      this.#cpus = null;
      return DEFAULT_RESOURCES.cpus;
    });
  }

  #record(name: string, spec: SandboxSpec, owner: string | null, forkedFrom: Origin | null): SandboxRecord {
    const generation = forkedFrom?.generation ?? 0;
    const now = this.#context.clock.now();
    return {
      id: this.#context.ids.sandbox(),
      name,
      nameHeld: true,
      phase: { name: "queued" },
      generation,
      memorySince: generation,
      lease: { state: "none" },
      instance: null,
      spec,
      createdAt: now,
      lastActivityAt: now,
      transitionedAt: now,
      endedAt: null,
      owner,
      execsStarted: forkedFrom?.execs.length ?? 0,
      forkedFrom,
      mounts: [],
      restarts: null,
      revision: 0,
    };
  }

  // ── Races ──────────────────────────────────────────────────────────────────────────────────────────────────────

  /**
   * Finds an existing fork with the same name. A create looks for it first, because it returns an existing fork even if
   * the checkpoint was deleted or the host has no room for another fork.
   */
  async #existingFork({ name, ifExists, fromCheckpoint }: CreateSandbox): Promise<LiveSandbox | null> {
    if (fromCheckpoint === undefined || ifExists !== "return" || name === undefined) return null;
    return this.#parts.registry.find(name).catch(() => null);
  }

  /**
   * Whether a create with size limits will return an existing sandbox of the requested name. The requested limits are
   * then not checked.
   */
  async #isHeld({ name, ifExists, resources }: CreateSandbox): Promise<boolean> {
    if (ifExists !== "return" || name === undefined || resources === undefined) return false;
    return (await this.#context.store.sandboxByName(name).catch(() => null)) !== null;
  }

  async #repeated(idempotency: Idempotency | undefined, digest: Digest): Promise<LiveSandbox | null> {
    if (idempotency === undefined) return null;
    const made = await this.#context.store.idempotent(idempotency.scope, idempotency.key);
    if (made === null) return null;
    if (!digest.matches(made.fingerprint)) throw new HoldfastError("idempotency_conflict");
    return this.#parts.registry.find(made.target);
  }

  /**
   * Handles a create whose commit failed, for example because another create took its name or key first. Tries again if
   * the name is free by now.
   */
  async #lostRace(
    error: unknown,
    input: CreateSandbox,
    { idempotency, digest, options, again }: Race,
  ): Promise<Created> {
    if (!(error instanceof StoreConflict)) {
      throw new HoldfastError("internal", {
        message: "The sandbox could not be recorded, so it was not started.",
        cause: error,
      });
    }
    const repeated = await this.#repeated(idempotency, digest);
    if (repeated !== null) return this.#existing(repeated, options);
    if (error.reason !== "name_taken" || input.name === undefined)
      throw new HoldfastError("internal", { cause: error });
    const expired = await this.#parts.registry.expiredHolder(input.name);
    if (expired !== null) await this.#parts.deletion.requestDelete(expired, 0);
    const holder = await this.#parts.registry.find(input.name).catch(nullIfGone);
    if (holder === null && again !== null) return again();
    if (holder === null || input.ifExists !== "return") {
      throw new HoldfastError("name_taken", {
        ...(holder && { sandboxId: holder.id }),
        message: `A live sandbox already has the name ${input.name}.`,
      });
    }
    return this.#existing(holder, options, input.mounts);
  }
}

/** What is needed to answer a create whose name or key was already taken. */
interface Race {
  idempotency: Idempotency | undefined;
  digest: Digest;
  options: CreateOptions;
  again: (() => Promise<Created>) | null;
}

function checkName(input: CreateSandbox): CreateSandbox {
  if (input.name !== undefined && !isName(input.name))
    throw new HoldfastError("invalid_request", { message: "The name must be a DNS label." });
  return input;
}

function nullIfGone(error: unknown): null {
  if (isHoldfastError(error) && ["sandbox_not_found", "sandbox_gone"].includes(error.code)) return null;
  throw error;
}

/**
 * Returns the commit that accepts a new sandbox. If the sandbox is a fork, the commit also contains the execs and
 * processes in its memory.
 */
function acceptance(
  record: SandboxRecord,
  { execs, processes }: { execs: readonly ExecRecord[]; processes: readonly ProcessRecord[] },
  idempotency: Idempotency | undefined,
): Commit {
  const { id: sandboxId, createdAt: at, name, generation, spec, forkedFrom } = record;
  const data = { name, image: spec.image, ...(forkedFrom && { fromCheckpoint: forkedFrom.checkpointId }) };
  const message = `Sandbox ${name} was accepted.`;
  return {
    changes: [
      { kind: "sandbox.insert", record, idempotency },
      ...processes.map((process) => ({ kind: "process.insert", record: process }) as const),
      ...execs.map((exec) => ({ kind: "exec.insert", record: exec }) as const),
    ],
    events: [
      { at, type: "sandbox.created", sandboxId, generation, message, data },
      ...execs.map(({ id: execId }) => ({
        ...{ at, type: "exec.started" as const, sandboxId, execId, generation },
        message: "An exec continues in a fork.",
      })),
      ...processes.map(({ id: processId, name: called, run }) => ({
        ...{ at, type: "process.started" as const, sandboxId, generation },
        message: `Process ${called} continues in a fork.`,
        data: { processId, name: called, run },
      })),
    ],
    counters: { created: 1, execsStarted: execs.length },
  };
}

const keyOf = ({ text }: Digest, key: string | undefined): Idempotency | undefined =>
  key === undefined ? undefined : { scope: "sandbox", key, fingerprint: text };
