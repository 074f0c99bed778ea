import { createHash } from "node:crypto";
import {
  type CreateSandbox,
  causeOf,
  DEFAULT_IMAGE,
  DEFAULT_RESOURCES,
  type Diagnosis,
  HoldfastError,
  isHoldfastError,
  isName,
  isSandboxId,
  type MountDrive,
  normalisePath,
  type Proof,
  type Recovery,
  type ResourceReport,
  type Sandbox,
  type SandboxId,
  type SandboxList,
  type Status,
  type UpdateSandbox,
  type UsageList,
} from "@holdfast/contract";
import type { Admission } from "./admission.ts";
import type { CreateOptions, SandboxApi } from "./api.ts";
import { pendingMessage } from "./audit.ts";
import { Cell } from "./cell.ts";
import type { Source } from "./checkpoints.ts";
import { raced, within } from "./clock.ts";
import type { Diagnostician } from "./diagnostician.ts";
import type { Drives } from "./drives.ts";
import { forkedExecs, forkedProcesses, forkedSpec, originOf } from "./forks.ts";
import { errorOf, type Gate, rootMessage, translate } from "./gate.ts";
import type { Launcher } from "./launcher.ts";
import type { Meter } from "./meter.ts";
import type { Mounts } from "./mounts.ts";
import type { Orphans } from "./orphans.ts";
import type { Pauses } from "./pauses.ts";
import { type Commit, type Idempotency, type SandboxFilter, StoreConflict } from "./ports.ts";
import type { Prover } from "./prover.ts";
import type { Reaper } from "./reaper.ts";
import type {
  ExecRecord,
  MountRecord,
  Origin,
  ProcessRecord,
  SandboxRecord,
  SandboxSpec,
  SavedCheckpoint,
} from "./records.ts";
import type { Restarts } from "./restarts.ts";
import type { Standby } from "./standby.ts";
import { changedSpec } from "./updated-spec.ts";
import { summaryOf } from "./usage-summary.ts";
import { viewSandbox } from "./view.ts";
import type { World } from "./world.ts";

export interface Parts {
  admission: Admission;
  launcher: Launcher;
  orphans: Orphans;
  reaper: Reaper;
  prover: Prover;
  gate: Gate;
  pauses: Pauses;
  standby: Standby;
  /** The drives that a new sandbox is to have. */
  mounts: Mounts;
  drives: Drives;
  meter: Meter;
  diagnostician: Diagnostician;
  /** What is being done about one that does not serve. */
  recovery(cell: Cell): Recovery | null;
  restarts: Restarts;
  /** The checkpoint that a new sandbox is to begin with. */
  source(id: string): Promise<Source>;
  /** An exec, and a process, that a sandbox has from its beginning. */
  adoptExec(cell: Cell, record: ExecRecord): void;
  adoptProcess(cell: Cell, record: ProcessRecord): void;
}

/** The live sandboxes, by id and by name, and what callers can do with them. */
export class Sandboxes implements SandboxApi {
  readonly #world: World;
  readonly #cells = new Map<SandboxId, Cell>();
  #parts: Parts | null = null;
  #cpus: Promise<number> | null = null;

  constructor(world: World) {
    this.#world = world;
  }

  /** The parts that act on cells are made with this registry in hand, so they arrive after it. */
  join(parts: Parts): void {
    this.#parts = parts;
  }

  get #with(): Parts {
    if (this.#parts === null)
      throw new Error("invariant broken: the engine's parts are joined before it is used");
    return this.#parts;
  }

  cells(): Iterable<Cell> {
    return this.#cells.values();
  }

  cell(id: string): Cell | undefined {
    return this.#cells.get(id as SandboxId);
  }

  adopt(record: SandboxRecord): Cell {
    const cell = new Cell(this.#world, record);
    this.#cells.set(record.id, cell);
    return cell;
  }

  /** Forgets a cell whose sandbox is gone; the record stays in the store. */
  drop(cell: Cell): void {
    this.#cells.delete(cell.id);
  }

  /** The live sandbox that a reference means. */
  async find(ref: string): Promise<Cell> {
    const known = this.#cells.get(ref as SandboxId);
    if (known !== undefined) return known;
    const record = await this.#stored(ref);
    const cell = this.#cells.get(record.id);
    if (cell !== undefined) return cell;
    throw new HoldfastError("sandbox_gone", { sandboxId: record.id });
  }

  async idOf(ref: string): Promise<SandboxId> {
    return this.#cells.get(ref as SandboxId)?.id ?? (await this.#stored(ref)).id;
  }

  async #stored(ref: string): Promise<SandboxRecord> {
    const { store } = this.#world;
    const record = isSandboxId(ref)
      ? await this.#byId(ref)
      : isName(ref)
        ? await store.sandboxByName(ref).catch((error: unknown) => unreadable(ref, error))
        : null;
    if (record === null) {
      throw new HoldfastError("sandbox_not_found", {
        message: `There is no sandbox ${JSON.stringify(ref.slice(0, 80))}.`,
      });
    }
    return record;
  }

  /** Null where there is no record and nothing physical either; what is left without one says that it is being cleaned up. */
  async #byId(id: SandboxId): Promise<SandboxRecord | null> {
    const { store } = this.#world;
    try {
      const record = await store.sandbox(id);
      if (record !== null) return record;
    } catch (error) {
      if (!(await store.unreadable()).includes(id))
        throw new HoldfastError("sandbox_gone", { sandboxId: id, cause: error });
      throw new HoldfastError("pending_cleanup", {
        sandboxId: id,
        message: pendingMessage(id, null),
        cause: error,
      });
    }
    const nextAttemptAt = this.#with.orphans.nextAttemptAt(id);
    if (nextAttemptAt === null) return null;
    throw new HoldfastError("pending_cleanup", { sandboxId: id, message: pendingMessage(id, nextAttemptAt) });
  }

  view(record: SandboxRecord): Sandbox {
    const cell = this.#cells.get(record.id);
    const { clock, numbers, driver } = this.#world;
    const standbyKind = driver.standby.kind;
    const recovery = cell === undefined ? null : this.#with.recovery(cell);
    const about = { numbers, standbyKind, recovery };
    return viewSandbox(cell?.record ?? record, cell?.evidence ?? null, clock.now(), about);
  }

  async get(ref: string): Promise<Sandbox> {
    const cell = this.#cells.get(ref as SandboxId);
    return this.view(cell?.record ?? (await this.#stored(ref)));
  }

  /** Callers at the same time don't undo each other: what was changed meanwhile is looked at again. */
  async update(ref: string, changes: UpdateSandbox): Promise<Sandbox> {
    const cell = await this.find(ref);
    for (let tries = 1; tries <= UPDATE_TRIES; tries += 1) {
      const before = cell.record.spec;
      const change = changedSpec(before, changes);
      if (change === null) return this.view(cell.record);
      const isSame = () => cell.record.spec === before;
      // Who says how long it may lie unused begins to count now.
      if (change.spec.lifecycle.idleTtlMs !== before.lifecycle.idleTtlMs) cell.touch();
      if ((await cell.decide({ type: "update", ...change }, [], isSame)) !== null)
        return this.view(cell.record);
      const { phase } = cell.record;
      if (phase.name === "deleting" || phase.name === "gone") throw cell.refusal();
    }
    const message = "Others change the sandbox all the time.";
    throw new HoldfastError("capacity", { sandboxId: cell.id, message });
  }

  async list(filter: Parameters<SandboxApi["list"]>[0]): Promise<SandboxList> {
    const { store } = this.#world;
    const wanted = filter.status?.length ? new Set<Status>(filter.status) : null;
    const includeGone = wanted?.has("terminated") ?? false;
    const items: Sandbox[] = [];
    let after = filter.cursor as SandboxId | undefined;
    if (after !== undefined && !isSandboxId(after))
      throw new HoldfastError("invalid_request", { message: "The cursor is not valid." });
    for (;;) {
      const page: SandboxFilter = { includeGone, labels: filter.labels, after, limit: PAGE };
      const records = await store.sandboxes(page);
      for (const record of records) {
        const view = this.view(record);
        if (wanted !== null && !wanted.has(view.status)) continue;
        if (items.length === filter.limit) return { items, nextCursor: items.at(-1)?.id ?? null };
        items.push(view);
      }
      if (records.length < PAGE) return { items, nextCursor: null };
      after = records.at(-1)?.id;
    }
  }

  create(input: CreateSandbox, options: CreateOptions): Promise<{ sandbox: Sandbox; existed: boolean }> {
    return this.#create(input, options, NAME_TRIES);
  }

  async #create(
    input: CreateSandbox,
    options: CreateOptions,
    tries: number,
  ): Promise<{ sandbox: Sandbox; existed: boolean }> {
    const idempotency = keyOf(input, options.idempotencyKey);
    const repeated = await this.#repeated(idempotency);
    if (repeated !== null) return this.#answer(repeated, true, options);
    const made = await this.#sameFork(input);
    if (made !== null) return this.#answer(made, true, options, input.mounts);
    const { fromCheckpoint } = input;
    const source = fromCheckpoint === undefined ? null : await this.#with.source(fromCheckpoint);
    const { onProgress, owner = null } = options;
    let cell: Cell;
    try {
      cell = await this.#acceptWithDrives(input, source?.saved ?? null, owner, idempotency, options.signal);
    } catch (error) {
      source?.release();
      if (isHoldfastError(error)) throw error;
      const again = () => this.#create(input, options, tries - 1);
      return this.#lostRace(error, input, { idempotency, options, again: tries > 1 ? again : null });
    }
    if (onProgress) cell.onProgress.add(onProgress);
    cell.progress("accepted");
    void this.#with.launcher.launch(cell).finally(() => {
      source?.release();
      if (onProgress) cell.onProgress.delete(onProgress);
    });
    return this.#answer(cell, false, options);
  }

  /** None of its drives can be deleted before the sandbox, and what it is to have, is stored. */
  async #acceptWithDrives(
    input: CreateSandbox,
    saved: SavedCheckpoint | null,
    owner: string | null,
    idempotency: Idempotency | undefined,
    signal: AbortSignal,
  ): Promise<Cell> {
    const { mounts, release } = this.#with.mounts.askAll(input.mounts ?? []);
    try {
      for (const { driveId } of mounts) await this.#with.drives.usable(driveId, signal);
      return await this.#accept(input, { saved, mounts }, owner, idempotency);
    } finally {
      release();
    }
  }

  /** Stores the sandbox, with the execs that it begins with. Refuses with an error of the registry; what the store says is passed on. */
  async #accept(
    input: CreateSandbox,
    { saved, mounts }: { saved: SavedCheckpoint | null; mounts: readonly MountRecord[] },
    owner: string | null,
    idempotency: Idempotency | undefined,
  ): Promise<Cell> {
    const { store, ids } = this.#world;
    const spec = saved === null ? await this.#spec(input) : forkedSpec(saved, this.#named(input));
    await this.#with.admission.admit(owner);
    this.#with.admission.checkCaps(owner);
    this.#with.launcher.admit();
    const origin = saved === null ? null : originOf(saved, ids);
    const record = { ...this.#record(input.name ?? ids.name(), spec, owner, origin), mounts };
    const execs = saved === null ? [] : forkedExecs(record, saved, record.createdAt);
    const processes = saved === null ? [] : forkedProcesses(record, saved, record.createdAt);
    const cell = this.adopt(record);
    try {
      await store.commit(acceptance(record, { execs, processes }, idempotency));
    } catch (error) {
      this.#cells.delete(record.id);
      throw error;
    }
    for (const process of processes) this.#with.adoptProcess(cell, process);
    for (const exec of execs) this.#with.adoptExec(cell, exec);
    return cell;
  }

  #named(input: CreateSandbox): CreateSandbox {
    if (input.name !== undefined && !isName(input.name))
      throw new HoldfastError("invalid_request", { message: "The name must be a DNS label." });
    return input;
  }

  async #spec(asked: CreateSandbox): Promise<SandboxSpec> {
    const input = this.#named(asked);
    const image = input.image ?? DEFAULT_IMAGE;
    if ((await this.#world.images.get(image)) === null) {
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

  /** All of the host's, unless the creator says less: what others don't use is anybody's, and shares are equal. */
  async #hostCpus(): Promise<number> {
    const { clock, driver, numbers } = this.#world;
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
    const now = this.#world.clock.now();
    return {
      id: this.#world.ids.sandbox(),
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

  /** A fork that exists is returned whatever became of its checkpoint, and though there may be no room for a second. */
  async #sameFork({ name, ifExists, fromCheckpoint }: CreateSandbox): Promise<Cell | null> {
    if (fromCheckpoint === undefined || ifExists !== "return" || name === undefined) return null;
    const holder = await this.#world.store.sandboxByName(name).catch(() => null);
    return holder === null ? null : (this.#cells.get(holder.id) ?? null);
  }

  async #repeated(idempotency: Idempotency | undefined): Promise<Cell | null> {
    if (idempotency === undefined) return null;
    const made = await this.#world.store.idempotent(idempotency.scope, idempotency.key);
    if (made === null) return null;
    if (made.fingerprint !== idempotency.fingerprint) throw new HoldfastError("idempotency_conflict");
    return this.find(made.target);
  }

  /** The name or key was taken between the look and the write. A name that was given back since then is tried again. */
  async #lostRace(
    error: unknown,
    input: CreateSandbox,
    { idempotency, options, again }: Race,
  ): Promise<{ sandbox: Sandbox; existed: boolean }> {
    if (!(error instanceof StoreConflict)) {
      throw new HoldfastError("internal", {
        message: "The sandbox could not be recorded, so it was not started.",
        cause: error,
      });
    }
    const repeated = await this.#repeated(idempotency);
    if (repeated !== null) return this.#answer(repeated, true, options);
    if (error.reason !== "name_taken" || input.name === undefined)
      throw new HoldfastError("internal", { cause: error });
    const holder = await this.find(input.name).catch(nullIfGone);
    if (holder === null && again !== null) return again();
    if (holder === null || input.ifExists !== "return") {
      throw new HoldfastError("name_taken", {
        ...(holder && { sandboxId: holder.id }),
        message: `A live sandbox already has the name ${input.name}.`,
      });
    }
    return this.#answer(holder, true, options, input.mounts);
  }

  /** A created sandbox is answered once it is proven; a returned one, new or old, is one that serves. */
  async #answer(
    cell: Cell,
    existed: boolean,
    { wait, signal }: CreateOptions,
    mounts: readonly MountDrive[] = [],
  ): Promise<{ sandbox: Sandbox; existed: boolean }> {
    if (!wait && mounts.length === 0) return { sandbox: this.view(cell.record), existed };
    try {
      await this.#with.gate.pass(cell, signal);
      await this.#with.mounts.ensure(cell, mounts, signal);
      // Somebody may have put it to sleep meanwhile.
      if (mounts.length > 0) await this.#with.gate.pass(cell, signal);
    } catch (error) {
      const { phase } = cell.record;
      if (existed || phase.name !== "failed") throw error;
      await this.#cleaned(cell);
      throw new HoldfastError("launch_failed", {
        sandboxId: cell.id,
        message: `The sandbox could not be started: ${rootMessage(phase.cause)}`,
        cause: errorOf(phase.cause),
      });
    }
    return { sandbox: this.view(cell.record), existed };
  }

  /** Gives the reaper a moment, so that a failed create normally returns when nothing is left of it. */
  async #cleaned(cell: Cell): Promise<void> {
    const limit = { ms: 5_000, what: "cleaning up" };
    await within(this.#world.clock, limit, (signal) =>
      cell.until(() => cell.record.lease.state === "none", signal),
    ).catch(() => undefined);
  }

  async remove(
    ref: string,
    options: { graceMs: number; waitMs?: number | undefined; signal: AbortSignal },
  ): Promise<Sandbox> {
    const { clock, numbers } = this.#world;
    const known = this.#cells.get(ref as SandboxId)?.record;
    const record = known ?? (await this.#stored(ref).catch((error: unknown) => this.#scrap(ref, error)));
    const cell = this.#cells.get(record.id);
    if (cell === undefined) return this.view(record);
    await this.order(cell, options.graceMs);
    const gone = () => cell.record.phase.name === "gone";
    const limit = { ms: options.waitMs ?? numbers.deleteWaitMs, what: "the delete", signal: options.signal };
    // Past the wait the duty goes on by itself; the answer then says `stopping`.
    if (limit.ms > 0) await within(clock, limit, (signal) => cell.until(gone, signal)).catch(() => undefined);
    return this.view(cell.record);
  }

  /** Someone asks for the end of what has no readable record: that is the evidence it takes to remove it now. */
  async #scrap(ref: string, error: unknown): Promise<never> {
    if (!isHoldfastError(error) || error.code !== "pending_cleanup" || !isSandboxId(ref)) throw error;
    const { clock, store } = this.#world;
    const id = ref;
    await this.#with.orphans
      .remove({ sandboxId: id, things: [], alive: true })
      .catch((cause: unknown) => stillThere(id, cause));
    if ((await store.unreadable()).includes(id)) {
      const at = clock.now();
      const message = "Nothing of the sandbox is left. Its record could not be read.";
      const event = { at, type: "sandbox.terminated", sandboxId: id, message } as const;
      const changes = [{ kind: "sandbox.scrap", id, at } as const];
      await store
        .commit({ changes, events: [event], counters: { terminated: 1 } })
        .catch((cause: unknown) => stillThere(id, cause));
    }
    throw new HoldfastError("sandbox_gone", {
      sandboxId: id,
      message: "What was left of the sandbox was removed.",
    });
  }

  /** Records the delete and sets it going, overtaking whatever else is under way. */
  async order(cell: Cell, graceMs: number, holds?: () => boolean): Promise<void> {
    await cell.decide({ type: "delete", cause: null }, [], holds).catch((error: unknown) => {
      const message = "The delete could not be recorded, so it was not begun.";
      throw new HoldfastError("internal", { sandboxId: cell.id, message, cause: error });
    });
    if (holds !== undefined && cell.record.phase.name !== "deleting") return;
    cell.fence.abort(new Error("the sandbox is being deleted"));
    this.#with.reaper.tend(cell, { graceMs });
  }

  async pause(ref: string, signal: AbortSignal): Promise<Sandbox> {
    const cell = await this.find(ref);
    await this.#with.pauses.pause(cell, signal);
    return this.view(cell.record);
  }

  async resume(ref: string, signal: AbortSignal): Promise<Sandbox> {
    const cell = await this.find(ref);
    await this.#with.pauses.resume(cell, signal);
    return this.view(cell.record);
  }

  async standby(ref: string, signal: AbortSignal): Promise<Sandbox> {
    const cell = await this.find(ref);
    await this.#with.gate.settled(cell, signal);
    // What sleeps, or is on its way there, is left alone; what wakes has been asked for.
    await cell.until(() => cell.record.phase.name !== "waking", signal);
    if (cell.record.phase.name !== "standby" || cell.suspension !== null)
      await raced(this.#with.standby.suspend(cell, "Standby was ordered."), signal);
    return this.view(cell.record);
  }

  async wake(ref: string, signal: AbortSignal): Promise<Sandbox> {
    const cell = await this.find(ref);
    await this.#with.gate.pass(cell, signal);
    return this.view(cell.record);
  }

  async restart(ref: string, signal: AbortSignal): Promise<Sandbox> {
    const cell = await this.find(ref);
    await this.#with.restarts.order(cell, signal);
    await this.#with.gate.pass(cell, signal);
    return this.view(cell.record);
  }

  async verify(ref: string, signal: AbortSignal): Promise<Proof> {
    const cell = await this.find(ref);
    if (cell.isAsleep) await this.#with.gate.pass(cell, signal);
    const refusal = cell.refusal();
    if (refusal !== null) throw refusal;
    signal.throwIfAborted();
    return this.#with.prover.prove(cell);
  }

  async processes(ref: string, signal: AbortSignal) {
    const cell = await this.find(ref);
    const link = await this.#with.gate.pass(cell, signal);
    const limit = { ms: this.#world.numbers.keeperCallMs, what: "listing processes", signal };
    const leave = cell.enter();
    return within(this.#world.clock, limit, (inner) => link.processes(inner))
      .catch((error: unknown) => {
        throw translate(error, { sandboxId: cell.id });
      })
      .finally(leave);
  }

  usage(): UsageList {
    const items = [...this.#cells.values()].map((cell) => summaryOf(cell, this.#with.meter));
    return { at: new Date(this.#world.clock.now()).toISOString(), items };
  }

  async resources(ref: string, signal: AbortSignal): Promise<ResourceReport> {
    return this.#with.meter.report(await this.#findOrGone(ref), signal);
  }

  async diagnosis(
    ref: string,
    options: { windowMs?: number | undefined },
    signal: AbortSignal,
  ): Promise<Diagnosis> {
    return this.#with.diagnostician.diagnose(await this.#findOrGone(ref), options, signal);
  }

  /** Also of one that is gone, as long as its record is there. */
  async #findOrGone(ref: string): Promise<Cell> {
    const known = this.#cells.get(ref as SandboxId);
    if (known !== undefined) return known;
    const record = await this.#stored(ref);
    return this.#cells.get(record.id) ?? new Cell(this.#world, record);
  }

  /** Orders the delete, if there is still a reason at that very moment, and waits a while for it. */
  async removed(cell: Cell, holds: () => boolean): Promise<"removed" | "ordered" | "kept"> {
    const { clock, numbers, stopping } = this.#world;
    await this.order(cell, 0, holds);
    if (cell.record.phase.name !== "deleting" && cell.record.phase.name !== "gone") return "kept";
    const gone = () => cell.record.phase.name === "gone";
    const limit = { ms: numbers.deleteWaitMs, what: "the delete", signal: stopping };
    await within(clock, limit, (signal) => cell.until(gone, signal)).catch(() => undefined);
    return gone() ? "removed" : "ordered";
  }
}

/** A create that found its name or key taken. */
interface Race {
  idempotency: Idempotency | undefined;
  options: CreateOptions;
  again: (() => Promise<{ sandbox: Sandbox; existed: boolean }>) | null;
}

/** How often a name that changes hands is asked for. */
const NAME_TRIES = 3;
const UPDATE_TRIES = 20;

function nullIfGone(error: unknown): null {
  if (isHoldfastError(error) && ["sandbox_not_found", "sandbox_gone"].includes(error.code)) return null;
  throw error;
}

/** What is written when a sandbox is accepted. */
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
        message: "An exec goes on in a fork.",
      })),
      ...processes.map(({ id: processId, name: called, run }) => ({
        ...{ at, type: "process.started" as const, sandboxId, generation },
        message: `Process ${called} goes on in a fork.`,
        data: { processId, name: called, run },
      })),
    ],
    counters: { created: 1, execsStarted: execs.length },
  };
}

function unreadable(name: string, error: unknown): never {
  const message = `The record of ${name} can't be read. 'holdfast audit' shows its id; it goes when it is deleted by that.`;
  throw new HoldfastError("pending_cleanup", { message, cause: error });
}

function stillThere(sandboxId: SandboxId, error: unknown): never {
  const message = `What is left of the sandbox could not be removed: ${causeOf(error).message}. Its record can't be read; delete it again.`;
  throw new HoldfastError("pending_cleanup", { sandboxId, message, cause: error });
}

const PAGE = 500;

function keyOf(input: CreateSandbox, key: string | undefined): Idempotency | undefined {
  if (key === undefined) return undefined;
  return {
    scope: "sandbox",
    key,
    fingerprint: createHash("sha256").update(JSON.stringify(input)).digest("hex"),
  };
}
