import {
  type Checkpoint,
  type CheckpointId,
  type CheckpointList,
  type CreateCheckpoint,
  causeOf,
  type ExecId,
  HoldfastError,
  isCheckpointId,
} from "@holdfast/contract";
import { raced, within } from "../lib/deadline.ts";
import { iso, mb } from "../lib/format.ts";
import { Semaphore } from "../lib/semaphore.ts";
import { KeyedSerialQueue } from "../lib/serial-queue.ts";
import { forkExecIds } from "../live/fork-exec-ids.ts";
import type { LiveSandbox } from "../live/live-sandbox.ts";
import type { SandboxRegistry } from "../live/sandbox-registry.ts";
import { specSize } from "../model/exec-spec-size.ts";
import { runId, runOf } from "../model/process-machine.ts";
import type { CheckpointApi } from "../ports/api.ts";
import type { EngineContext } from "../ports/context.ts";
import {
  type KeeperExec,
  type Link,
  requireCapability,
  StoreConflict,
  standbySupport,
} from "../ports/index.ts";
import type { CheckpointSummary, SavedCheckpoint, SavedProcess } from "../ports/records.ts";
import type { SandboxGate } from "./gate.ts";
import { isQuiet, roomFor, type Standby, untilQuiet } from "./suspend.ts";
import { toError, wrongState } from "./to-error.ts";

interface CheckpointParts {
  gate: SandboxGate;
  standby: Standby;
  registry: SandboxRegistry;
}

/** A checkpoint from which a new sandbox starts. Room for its copy is reserved until `release` is called. */
interface Source {
  saved: SavedCheckpoint;
  release(): void;
}

/** Limit on the total size of the execs that are stored with a checkpoint: commands, environments and stdin. */
const EXECS_BYTES_MAX = 16 * 1_048_576;
/**
 * Maximum number of runs of one process that a keeper can start after it has listed its execs and before it is frozen.
 * The number is small because the delay between two runs doubles with each run.
 */
const NEXT_RUNS = 16;

/**
 * Creates named checkpoints: copies of the files and memory of a sandbox at one moment, while the sandbox stays in
 * service. To take a checkpoint, the sandbox is frozen as for standby. If any step fails, the sandbox stays running,
 * linked and proven. The database row of a checkpoint is stored last, and files without a row are removed.
 */
export class Checkpoints implements CheckpointApi {
  readonly #context: EngineContext;
  readonly #parts: CheckpointParts;
  /**
   * Runs creations and removals of one sandbox's checkpoints one after the other: a removal must not delete a
   * checkpoint that is being created.
   */
  readonly #changes: KeyedSerialQueue<LiveSandbox>;
  /** Only one sandbox is copied at a time, because a copy may need all free disk space. */
  readonly #turn: Semaphore;
  /** Bytes of disk and memory reserved for sandboxes that are being created from checkpoints. */
  readonly #promised = { disk: 0, memory: 0 };
  /**
   * Number of copies that the driver is writing of each sandbox, including copies that the engine no longer waits for.
   */
  readonly #copies = new WeakMap<LiveSandbox, number>();
  /** Sandboxes that may have checkpoint files without a database row. */
  readonly #untidy = new Set<LiveSandbox>();

  constructor(context: EngineContext, parts: CheckpointParts) {
    this.#context = context;
    this.#parts = parts;
    this.#turn = new Semaphore(1, { limit: context.numbers.checkpointsWaiting });
    this.#changes = new KeyedSerialQueue({
      limit: context.numbers.checkpointChangesWaiting,
      onFull: ({ id: sandboxId }) => new HoldfastError("too_many_held", { sandboxId }),
    });
  }

  async create(ref: string, { name }: CreateCheckpoint, signal: AbortSignal): Promise<Checkpoint> {
    const { driver, ids } = this.#context;
    requireCapability(driver, "checkpoints");
    const live = await this.#parts.registry.find(ref);
    const id = ids.checkpoint();
    const wanted = { id, name: name ?? ids.name() };
    const saved = await this.#inTurn(live, signal, async () => {
      await this.#admitName(live, wanted.name);
      return this.#turn.run(signal, () => this.#create(live, wanted, signal));
    });
    return viewSaved(saved);
  }

  async #create(live: LiveSandbox, wanted: Wanted, signal: AbortSignal): Promise<SavedCheckpoint> {
    const link = await this.#claim(live, signal);
    try {
      return await this.#save(live, link, wanted);
    } catch (error) {
      throw toCheckpointError(live, error, wanted);
    } finally {
      live.endSave();
    }
  }

  async list(ref: string): Promise<CheckpointList> {
    const { store } = this.#context;
    const live = await this.#parts.registry.find(ref);
    return { items: (await store.checkpoints(live.id)).map(viewSaved), nextCursor: null };
  }

  async remove(ref: string, which: string, signal: AbortSignal): Promise<void> {
    const { clock, store } = this.#context;
    const live = await this.#parts.registry.find(ref);
    await this.#inTurn(live, signal, async () => {
      const sandboxId = live.id;
      const id = await this.#idOf(live, which);
      const message = `Checkpoint ${which} was removed.`;
      const event = { at: clock.now(), type: "checkpoint.removed", sandboxId, message } as const;
      await store
        .commit({
          changes: [{ kind: "checkpoint.remove", id }],
          events: [{ ...event, data: { checkpointId: id } }],
        })
        .catch((cause: unknown) => {
          const text = "The removal could not be recorded, so nothing was done.";
          throw new HoldfastError("internal", { sandboxId, message: text, cause });
        });
      if (await this.#clear(live)) return;
      const text =
        "The checkpoint was removed, but some of its files could not be deleted yet; this is tried again.";
      throw new HoldfastError("checkpoint_failed", { sandboxId, message: text });
    });
  }

  /** Finds a checkpoint by name or id. A checkpoint whose row is unreadable is found only by its id. */
  async #idOf(live: LiveSandbox, which: string): Promise<CheckpointId> {
    const { store } = this.#context;
    const ids = await store.checkpointIds(live.id);
    const named = (await store.checkpoints(live.id)).find(({ name }) => name === which);
    const id = named?.id ?? ids.find((each) => each === which);
    if (id === undefined) throw new HoldfastError("checkpoint_not_found", { sandboxId: live.id });
    return id;
  }

  /** Removes checkpoint files without a database row, for a sandbox taken over from an earlier server. */
  async tidy(live: LiveSandbox): Promise<void> {
    this.#untidy.add(live);
    // A copy that an earlier server began may be in progress until the sandbox is recovered, so its files are not
    // removed yet.
    if (live.record.phase.name === "suspending") return;
    await this.#inTurn(live, this.#context.stopping, async () => {
      await this.#clear(live);
    }).catch(() => undefined);
  }

  /**
   * Repeats `tidy` for sandboxes for which it has not succeeded yet. A deleted sandbox needs no repetition, because its
   * delete removes the files anyway.
   */
  tidyAgain(): void {
    for (const live of this.#untidy) {
      const { name } = live.record.phase;
      if (name === "deleting" || name === "gone") this.#untidy.delete(live);
      else if (this.#copiesOf(live) === 0) void this.tidy(live);
    }
  }

  /** Returns the checkpoint from which a new sandbox starts. Throws if the host has no room for a copy. */
  async source(id: string): Promise<Source> {
    const { clock, driver, numbers, store } = this.#context;
    const saved = isCheckpointId(id) ? await store.checkpoint(id) : null;
    const owner = saved === null ? undefined : this.#parts.registry.live(saved.sandboxId)?.record.phase.name;
    if (saved === null || owner === undefined || owner === "deleting" || owner === "gone")
      throw new HoldfastError("checkpoint_not_found");
    if (saved.kind === "memory" && standbySupport(driver).kind === "files")
      throw new HoldfastError("checkpoint_unusable", {
        message: `The checkpoint has memory, which can't be restored on this host: ${standbySupport(driver).why}.`,
      });
    const limit = { ms: numbers.keeperCallMs, what: "measuring the host" };
    const { diskFreeBytes, memoryFreeBytes } = await within(clock, limit, (signal) =>
      driver.capacity(signal),
    ).catch((error: unknown) => {
      const message = "The host's free disk and memory could not be measured, so nothing is copied.";
      throw new HoldfastError("capacity", { message, cause: error });
    });
    const { sizeBytes, memoryBytes } = saved;
    const promised = this.#promised;
    if (diskFreeBytes - promised.disk - sizeBytes < numbers.diskReserveBytes)
      throw new HoldfastError("disk_full", {
        message: `A copy of the checkpoint takes ${mb(sizeBytes)} MB, and the disk has ${mb(diskFreeBytes)} MB free with ${mb(numbers.diskReserveBytes)} MB in reserve.`,
      });
    if (memoryFreeBytes - promised.memory - memoryBytes < numbers.memoryReserveBytes)
      throw new HoldfastError("low_memory", {
        message: `The checkpoint has ${mb(memoryBytes)} MB of memory, and the host has ${mb(memoryFreeBytes)} MB free.`,
      });
    promised.disk += sizeBytes;
    promised.memory += memoryBytes;
    const release = () => {
      promised.disk -= sizeBytes;
      promised.memory -= memoryBytes;
    };
    return { saved, release };
  }

  async #inTurn<Result>(live: LiveSandbox, signal: AbortSignal, act: () => Promise<Result>): Promise<Result> {
    const turn = this.#changes.run(live, () => {
      signal.throwIfAborted();
      return act();
    });
    return raced(turn, signal);
  }

  async #admitName(live: LiveSandbox, name: string): Promise<void> {
    const { numbers, store } = this.#context;
    const kept = await store.checkpoints(live.id);
    if (kept.some((each) => each.name === name)) throw taken(live, name);
    if (kept.length >= numbers.checkpointsPerSandbox)
      throw new HoldfastError("too_many_checkpoints", { sandboxId: live.id });
  }

  /** Returns the link of a sandbox that is not being suspended, and prevents suspensions until `endSave`. */
  async #claim(live: LiveSandbox, signal: AbortSignal): Promise<Link> {
    for (let tries = 1; tries <= this.#context.numbers.callTriesMax; tries += 1) {
      const link = await this.#parts.gate.pass(live, signal);
      if (live.suspension === null) {
        live.beginSave();
        return link;
      }
      await live.until(() => live.suspension === null, signal);
    }
    const message = "The sandbox was suspended again each time before its checkpoint could begin.";
    throw new HoldfastError("sandbox_busy", { sandboxId: live.id, message });
  }

  /**
   * Takes the checkpoint. Continues even if the caller disconnects, because only this code cleans up after a failure.
   */
  async #save(live: LiveSandbox, link: Link, wanted: Wanted): Promise<SavedCheckpoint> {
    const { stopping } = this.#context;
    const signal = AbortSignal.any([stopping, live.deletedSignal]);
    const maxBytes = await roomFor(this.#context, live, this.#promised.disk, signal);
    await this.#begin(live, wanted);
    try {
      const saved = await this.#copy(live, link, { ...wanted, maxBytes }, signal);
      await this.#parts.standby.serveAgain(live);
      const { id: checkpointId, name, sizeBytes } = saved;
      const input = { type: "saved", checkpointId, name, sizeBytes } as const;
      const done = await live.decide(input, [{ kind: "checkpoint.insert", record: saved }]);
      if (done === null) throw notSavable(live);
      return saved;
    } catch (error) {
      // A delete of the sandbox removes the checkpoint's files too, so nothing is undone at this point.
      if (live.deletedSignal.aborted) throw error;
      // The next server continues from the record. Until then the sandbox keeps running, so it is thawed now.
      if (stopping.aborted) {
        await this.#parts.standby.thaw(live);
        throw error;
      }
      await this.#parts.standby.abandonSuspension(live, causeOf(error));
      await this.#clear(live);
      throw error;
    }
  }

  async #begin(live: LiveSandbox, { id: checkpointId, name }: Wanted): Promise<void> {
    const { clock, driver, numbers } = this.#context;
    const { kind } = standbySupport(driver);
    const deadline = clock.now() + numbers.standbyDeadlineMs;
    const why = `Checkpoint ${name} was requested.`;
    const order = { type: "suspend", checkpointId, kind, deadline, why, saving: true } as const;
    if ((await live.decide(order)) === null) throw notSavable(live);
  }

  async #copy(
    live: LiveSandbox,
    link: Link,
    { id, name, maxBytes }: Wanted & { maxBytes: number },
    signal: AbortSignal,
  ): Promise<SavedCheckpoint> {
    const { clock, driver, numbers } = this.#context;
    const { kind } = standbySupport(driver);
    const { generation, spec, name: sandboxName, instance } = live.record;
    const limit = { ms: numbers.standbyDeadlineMs, what: "creating the checkpoint", signal };
    return within(clock, limit, async (inner) => {
      const { execs, processes, journals } = await this.#quietExecs(live, link, inner);
      const order = { sandboxId: live.id, generation, id, kind, journals, maxBytes };
      await raced(live.healing, inner);
      const freezing = { ms: numbers.freezeMs, what: "freezing", signal: inner };
      await within(clock, freezing, (last) => requireCapability(driver, "freezer").freeze(live.id, last));
      const copying = requireCapability(driver, "checkpoints").save(order, inner);
      this.#copies.set(live, this.#copiesOf(live) + 1);
      live.trackDriverWork(copying.finally(() => this.#copies.set(live, this.#copiesOf(live) - 1)));
      const { sizeBytes, memoryBytes } = await raced(copying, inner);
      const keeperBootId = instance?.keeperBootId ?? null;
      const made = { id, sandboxId: live.id, name, kind, generation, keeperBootId, createdAt: clock.now() };
      const kept = kind === "memory" ? { execs, processes } : { execs: [], processes: [] };
      const execIds = kept.execs.map((exec) => exec.id);
      return { ...made, sizeBytes, memoryBytes, spec, sandboxName, ...kept, execIds };
    });
  }

  /**
   * Waits for a moment when no call to the keeper is in progress. Returns the execs and processes that run at that
   * moment, and all journals that the keeper knows. The link is detached in the same tick, so that afterwards nothing
   * is sent to the keeper and no event of the keeper arrives.
   */
  async #quietExecs(live: LiveSandbox, link: Link, signal: AbortSignal) {
    for (;;) {
      await untilQuiet(this.#context, live, signal);
      const known = await link.listExecs(signal);
      if (!isQuiet(live)) continue;
      live.detachLink();
      const keeperIdOf = forkExecIds(live.record)?.translate ?? ((id) => id);
      const running = [...live.openExecs].filter((exec) => exec.isRunning);
      if (running.reduce((sum, { record }) => sum + specSize(record.spec), 0) > EXECS_BYTES_MAX)
        throw new Error(
          `the commands, environments and input of its execs take more than ${mb(EXECS_BYTES_MAX)} MB`,
        );
      const execs = running.map(({ record: { id, spec, digest, startedAt } }) => ({
        id,
        keeperId: keeperIdOf(id),
        spec,
        digest,
        startedAt,
      }));
      const processes = savedProcesses(live, new Set<string>(execs.map(({ id }) => id)), keeperIdOf);
      const journals = new Set([
        ...known.map(({ id }) => keeperIdOf(id)),
        ...execs.map(({ keeperId }) => keeperId),
        ...processes.flatMap((process) => nextRuns(process, known)),
      ]);
      return { execs, processes, journals: [...journals] };
    }
  }

  #copiesOf(live: LiveSandbox): number {
    return this.#copies.get(live) ?? 0;
  }

  /**
   * Removes checkpoint files without a database row, and returns whether that succeeded. Files that remain do no harm:
   * they are removed by a later attempt, and so are files of a copy that ends late.
   */
  async #clear(live: LiveSandbox): Promise<boolean> {
    const { store, log } = this.#context;
    const isLate = this.#copiesOf(live) > 0;
    this.#untidy.add(live);
    try {
      await this.#unsave(live, await store.checkpointIds(live.id));
      if (!isLate) this.#untidy.delete(live);
      return true;
    } catch (error) {
      log.warn({ sandbox: live.id, cause: causeOf(error) }, "checkpoints could not be removed");
      return false;
    }
  }

  async #unsave(live: LiveSandbox, keep: readonly CheckpointId[]): Promise<void> {
    const { clock, driver, numbers } = this.#context;
    const limit = { ms: numbers.stopAttemptMs, what: "removing checkpoints" };
    await within(clock, limit, async (signal) =>
      driver.capabilities.checkpoints?.unsave(live.id, keep, signal),
    );
  }
}

interface Wanted {
  id: CheckpointId;
  name: string;
}

/**
 * Returns the ids of runs that the keeper may start by itself before it is frozen. The copy ignores ids without a
 * journal.
 */
function nextRuns({ id, keeperId, run, spec }: SavedProcess, known: readonly KeeperExec[]): ExecId[] {
  if (spec.restart === null) return [];
  const runs = known.map((exec) => runOf(exec.id)).filter((each) => each?.process === id);
  const last = Math.max(run, ...runs.map((each) => each?.run ?? 0));
  return Array.from({ length: NEXT_RUNS }, (_, place) => runId(keeperId, last + 1 + place));
}

function savedProcesses(
  { processes }: LiveSandbox,
  execs: ReadonlySet<string>,
  keeperIdOf: (id: ExecId) => ExecId,
): SavedProcess[] {
  return [...processes.values()].flatMap(({ record: { end, ...record } }) => {
    const id = runId(record.id, record.run);
    if (end !== null || (record.spec.restart === null && !execs.has(id))) return [];
    const { name, spec, digest, run, restarts } = record;
    const keeperId = runOf(keeperIdOf(id))?.process ?? record.id;
    return [{ id: record.id, keeperId, name, spec, digest, run, restarts }];
  });
}

const taken = (live: LiveSandbox, name: string): HoldfastError =>
  new HoldfastError("checkpoint_exists", {
    sandboxId: live.id,
    message: `The sandbox has a checkpoint ${name} already.`,
  });

function toCheckpointError(live: LiveSandbox, error: unknown, { name }: Wanted): unknown {
  if (error instanceof StoreConflict && error.reason === "checkpoint_exists") return taken(live, name);
  return toError(live, { code: "checkpoint_failed", what: "The checkpoint could not be created" }, error);
}

const notSavable = (live: LiveSandbox): HoldfastError =>
  wrongState(live, `No checkpoint can be created of a sandbox that is ${live.judge().status}.`);

const viewSaved = (saved: CheckpointSummary): Checkpoint => ({
  id: saved.id,
  name: saved.name,
  sandboxId: saved.sandboxId,
  kind: saved.kind,
  createdAt: iso(saved.createdAt),
  generation: saved.generation,
  sizeBytes: saved.sizeBytes,
  memoryBytes: saved.memoryBytes,
  execs: [...saved.execIds],
});
