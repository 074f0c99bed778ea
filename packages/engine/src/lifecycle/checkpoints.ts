import {
  type Checkpoint,
  type CheckpointId,
  type CheckpointList,
  type CreateCheckpoint,
  causeOf,
  type ExecId,
  HoldfastError,
  isCheckpointId,
  isHoldfastError,
  type SandboxId,
} from "@holdfast/contract";
import type { CheckpointApi } from "./api.ts";
import type { Cell } from "./cell.ts";
import { raced, within } from "./clock.ts";
import { execNames } from "./exec-names.ts";
import { errorOf, type Gate } from "./gate.ts";
import { mb } from "./megabytes.ts";
import type { OpenExec } from "./open-exec.ts";
import { type KeeperExec, type Link, StoreConflict } from "./ports.ts";
import { runId, runOf } from "./process.ts";
import type { CheckpointSummary, SavedCheckpoint, SavedProcess } from "./records.ts";
import { isQuiet, roomFor, type Standby, untilQuiet } from "./standby.ts";
import { Turnstile } from "./turnstile.ts";
import type { World } from "./world.ts";

export interface CheckpointParts {
  gate: Gate;
  standby: Standby;
  find(ref: string): Promise<Cell>;
  cell(id: SandboxId): Cell | undefined;
}

/** A checkpoint that a sandbox is about to begin with, and the room that is set aside for the copy until it is let go. */
export interface Source {
  saved: SavedCheckpoint;
  release(): void;
}

/** Orders of one sandbox that wait for those before them. */
const WAITING_MAX = 16;
/** What execs may take that are kept with a checkpoint: their commands, environments and input. */
const EXECS_BYTES_MAX = 16 * 1_048_576;
/** More runs than a keeper begins of one process between the last question and the freeze: each waits twice as long. */
const NEXT_RUNS = 16;

/**
 * Checkpoints that callers ask for by name: a copy of files and memory at one moment, of a sandbox that goes on. On the way
 * there it is frozen like one that goes to sleep, and whatever fails leaves it running, linked and proven. What is kept is
 * known by its row, which is stored last: files without a row are nobody's, and are removed.
 */
export class Checkpoints implements CheckpointApi {
  readonly #world: World;
  readonly #parts: CheckpointParts;
  /** What makes and removes the checkpoints of one sandbox, one at a time: neither may take what the other is making. */
  readonly #lines = new WeakMap<Cell, { tail: Promise<unknown>; length: number }>();
  /** Of all sandboxes one is copied at a time: each copy may take all the room that there is. */
  readonly #turn = new Turnstile(1);
  /** What sandboxes take that are being made of checkpoints. */
  readonly #promised = { disk: 0, memory: 0 };
  /** How many copies the driver is making, those that were given up among them. */
  readonly #copies = new WeakMap<Cell, number>();
  /** Those of which something may lie there that no row speaks of. */
  readonly #untidy = new Set<Cell>();

  constructor(world: World, parts: CheckpointParts) {
    this.#world = world;
    this.#parts = parts;
  }

  async create(ref: string, { name }: CreateCheckpoint, signal: AbortSignal): Promise<Checkpoint> {
    const { ids } = this.#world;
    const cell = await this.#parts.find(ref);
    const id = ids.checkpoint();
    const wanted = { id, name: name ?? ids.name() };
    const saved = await this.#inLine(cell, signal, async () => {
      await this.#admitName(cell, wanted.name);
      return this.#turn.pass(signal, () => this.#made(cell, wanted, signal));
    });
    return viewSaved(saved);
  }

  async #made(cell: Cell, wanted: Wanted, signal: AbortSignal): Promise<SavedCheckpoint> {
    const link = await this.#claim(cell, signal);
    try {
      return await this.#save(cell, link, wanted);
    } catch (error) {
      throw told(cell, error, wanted);
    } finally {
      cell.saving = false;
      cell.changed();
    }
  }

  async list(ref: string): Promise<CheckpointList> {
    const { store } = this.#world;
    const cell = await this.#parts.find(ref);
    return { items: (await store.checkpoints(cell.id)).map(viewSaved), nextCursor: null };
  }

  async remove(ref: string, which: string, signal: AbortSignal): Promise<void> {
    const { clock, store } = this.#world;
    const cell = await this.#parts.find(ref);
    await this.#inLine(cell, signal, async () => {
      const sandboxId = cell.id;
      const id = await this.#idOf(cell, which);
      const message = `Checkpoint ${which} was removed.`;
      const event = { at: clock.now(), type: "checkpoint.removed", sandboxId, message } as const;
      await store
        .commit({
          changes: [{ kind: "checkpoint.remove", id }],
          events: [{ ...event, data: { checkpointId: id } }],
        })
        .catch((cause: unknown) => {
          const text = "The removal could not be recorded, so it was not begun.";
          throw new HoldfastError("internal", { sandboxId, message: text, cause });
        });
      if (await this.#clear(cell)) return;
      const text =
        "The checkpoint is no more, but some of its files could not be removed yet; that is tried again.";
      throw new HoldfastError("checkpoint_failed", { sandboxId, message: text });
    });
  }

  /** Also of one whose row can't be read, by its id. */
  async #idOf(cell: Cell, which: string): Promise<CheckpointId> {
    const { store } = this.#world;
    const ids = await store.checkpointIds(cell.id);
    const named = (await store.checkpoints(cell.id)).find(({ name }) => name === which);
    const id = named?.id ?? ids.find((each) => each === which);
    if (id === undefined) throw new HoldfastError("checkpoint_not_found", { sandboxId: cell.id });
    return id;
  }

  /** Removes what no row speaks of, of a sandbox that an earlier server left. */
  async tidy(cell: Cell): Promise<void> {
    this.#untidy.add(cell);
    // An earlier server's copy may still be written, until its recovery has seen to that.
    if (cell.record.phase.name === "suspending") return;
    await this.#inLine(cell, this.#world.stopping, async () => {
      await this.#clear(cell);
    }).catch(() => undefined);
  }

  /** The same where it could not be done so far. Those of a sandbox that is deleted go with its files. */
  tidyAgain(): void {
    for (const cell of this.#untidy) {
      const { name } = cell.record.phase;
      if (name === "deleting" || name === "gone") this.#untidy.delete(cell);
      else if (this.#copiesOf(cell) === 0) void this.tidy(cell);
    }
  }

  /** The one that a new sandbox is to begin with, where the host has room for a copy of it. */
  async source(id: string): Promise<Source> {
    const { clock, driver, numbers, store } = this.#world;
    const saved = isCheckpointId(id) ? await store.checkpoint(id) : null;
    const owner = saved === null ? undefined : this.#parts.cell(saved.sandboxId)?.record.phase.name;
    if (saved === null || owner === undefined || owner === "deleting" || owner === "gone")
      throw new HoldfastError("checkpoint_not_found");
    if (saved.kind === "memory" && driver.standby.kind === "files")
      throw new HoldfastError("checkpoint_unusable", {
        message: `The checkpoint has memory, which can't be restored on this host: ${driver.standby.why}.`,
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

  async #inLine<Result>(cell: Cell, signal: AbortSignal, act: () => Promise<Result>): Promise<Result> {
    const line = this.#lines.get(cell) ?? { tail: Promise.resolve(), length: 0 };
    if (line.length >= WAITING_MAX) throw new HoldfastError("too_many_held", { sandboxId: cell.id });
    line.length += 1;
    const turn = line.tail
      .then(() => {
        signal.throwIfAborted();
        return act();
      })
      .finally(() => {
        line.length -= 1;
      });
    line.tail = turn.catch(() => undefined);
    this.#lines.set(cell, line);
    return raced(turn, signal);
  }

  async #admitName(cell: Cell, name: string): Promise<void> {
    const { numbers, store } = this.#world;
    const kept = await store.checkpoints(cell.id);
    if (kept.some((each) => each.name === name)) throw taken(cell, name);
    if (kept.length >= numbers.checkpointsPerSandbox)
      throw new HoldfastError("too_many_checkpoints", { sandboxId: cell.id });
  }

  /** The way in, of one that is not on its way to sleep; from here on it is not sent there either. */
  async #claim(cell: Cell, signal: AbortSignal): Promise<Link> {
    for (;;) {
      const link = await this.#parts.gate.pass(cell, signal);
      if (cell.suspension === null) {
        cell.saving = true;
        return link;
      }
      await cell.until(() => cell.suspension === null, signal);
    }
  }

  /** Once it is begun it goes on without its caller, who would not know what it left behind. */
  async #save(cell: Cell, link: Link, wanted: Wanted): Promise<SavedCheckpoint> {
    const { stopping } = this.#world;
    const signal = AbortSignal.any([stopping, cell.fence.signal]);
    const maxBytes = await roomFor(this.#world, cell, this.#promised.disk, signal);
    await this.#begin(cell, wanted);
    try {
      const saved = await this.#copy(cell, link, { ...wanted, maxBytes }, signal);
      await this.#parts.standby.serveAgain(cell);
      const { id: checkpointId, name, sizeBytes } = saved;
      const input = { type: "saved", checkpointId, name, sizeBytes } as const;
      const done = await cell.decide(input, [{ kind: "checkpoint.insert", record: saved }]);
      if (done === null) throw wrongState(cell);
      return saved;
    } catch (error) {
      // The delete takes all of it. The next server finds it as it is; until then it runs.
      if (cell.fence.signal.aborted) throw error;
      if (stopping.aborted) {
        await this.#parts.standby.letGo(cell);
        throw error;
      }
      await this.#parts.standby.goOn(cell, causeOf(error));
      await this.#clear(cell);
      throw error;
    }
  }

  async #begin(cell: Cell, { id: checkpointId, name }: Wanted): Promise<void> {
    const { clock, driver, numbers } = this.#world;
    const { kind } = driver.standby;
    const deadline = clock.now() + numbers.standbyDeadlineMs;
    const why = `Checkpoint ${name} was ordered.`;
    const order = { type: "suspend", checkpointId, kind, deadline, why, saving: true } as const;
    if ((await cell.decide(order)) === null) throw wrongState(cell);
  }

  async #copy(
    cell: Cell,
    link: Link,
    { id, name, maxBytes }: Wanted & { maxBytes: number },
    signal: AbortSignal,
  ): Promise<SavedCheckpoint> {
    const { clock, driver, numbers } = this.#world;
    const { kind } = driver.standby;
    const { generation, spec, name: sandboxName, instance } = cell.record;
    const limit = { ms: numbers.standbyDeadlineMs, what: "making the checkpoint", signal };
    return within(clock, limit, async (inner) => {
      const { execs, processes, journals } = await this.#quietExecs(cell, link, inner);
      const order = { sandboxId: cell.id, generation, id, kind, journals, maxBytes };
      await raced(cell.mending, inner);
      const freezing = { ms: numbers.freezeMs, what: "freezing", signal: inner };
      await within(clock, freezing, (last) => driver.freeze(cell.id, last));
      const copying = driver.save(order, inner);
      this.#copies.set(cell, this.#copiesOf(cell) + 1);
      cell.launching = copying
        .catch(() => undefined)
        .finally(() => this.#copies.set(cell, this.#copiesOf(cell) - 1));
      const { sizeBytes, memoryBytes } = await raced(copying, inner);
      const keeperBootId = instance?.keeperBootId ?? null;
      const made = { id, sandboxId: cell.id, name, kind, generation, keeperBootId, createdAt: clock.now() };
      const kept = kind === "memory" ? { execs, processes } : { execs: [], processes: [] };
      const execIds = kept.execs.map((exec) => exec.id);
      return { ...made, sizeBytes, memoryBytes, spec, sandboxName, ...kept, execIds };
    });
  }

  /**
   * What is under way at a moment when nothing is on its way to the keeper, and all that the keeper then knows of. From
   * that moment on, in which nobody else has a turn, nothing reaches the keeper and nothing of it is heard.
   */
  async #quietExecs(cell: Cell, link: Link, signal: AbortSignal) {
    for (;;) {
      await untilQuiet(this.#world, cell, signal);
      const known = await link.listExecs(signal);
      if (!isQuiet(cell)) continue;
      cell.links?.close();
      cell.links = null;
      const inside = execNames(cell.record)?.inside ?? ((id) => id);
      const underWay = [...cell.openExecs].filter(isUnderWay);
      if (sizeOf(underWay) > EXECS_BYTES_MAX)
        throw new Error(
          `what its execs were started with takes more than ${mb(EXECS_BYTES_MAX)} MB, which is too much to keep`,
        );
      const execs = underWay.map(({ record: { id, spec, digest, startedAt } }) => ({
        id,
        keeperId: inside(id),
        spec,
        digest,
        startedAt,
      }));
      const processes = savedProcesses(cell, new Set<string>(execs.map(({ id }) => id)), inside);
      const journals = new Set([
        ...known.map(({ id }) => inside(id)),
        ...execs.map(({ keeperId }) => keeperId),
        ...processes.flatMap((process) => nextRuns(process, known)),
      ]);
      return { execs, processes, journals: [...journals] };
    }
  }

  #copiesOf(cell: Cell): number {
    return this.#copies.get(cell) ?? 0;
  }

  /** Whether that could be done. That files stay for a while which no row speaks of is no harm: it is tried again, and when a late copy is over. */
  async #clear(cell: Cell): Promise<boolean> {
    const { store, log } = this.#world;
    const isLate = this.#copiesOf(cell) > 0;
    this.#untidy.add(cell);
    try {
      await this.#unsave(cell, await store.checkpointIds(cell.id));
      if (!isLate) this.#untidy.delete(cell);
      return true;
    } catch (error) {
      log.warn({ sandbox: cell.id, cause: causeOf(error) }, "checkpoints could not be removed");
      return false;
    }
  }

  async #unsave(cell: Cell, keep: readonly CheckpointId[]): Promise<void> {
    const { clock, driver, numbers } = this.#world;
    const limit = { ms: numbers.stopAttemptMs, what: "removing checkpoints" };
    await within(clock, limit, (signal) => driver.unsave(cell.id, keep, signal));
  }
}

interface Wanted {
  id: CheckpointId;
  name: string;
}

/** Roughly, and not less than it is. */
const sizeOf = (execs: readonly OpenExec[]): number =>
  execs.reduce((sum, { record: { spec } }) => sum + JSON.stringify(spec).length, 0);

/** Those that go on in its memory: one that is started again does so also between two runs. */
/** What the keeper may begin by itself before it is frozen: where there is no such journal by then, none is copied. */
function nextRuns({ id, keeperId, run, spec }: SavedProcess, known: readonly KeeperExec[]): ExecId[] {
  if (spec.restart === null) return [];
  const runs = known.map((exec) => runOf(exec.id)).filter((each) => each?.process === id);
  const last = Math.max(run, ...runs.map((each) => each?.run ?? 0));
  return Array.from({ length: NEXT_RUNS }, (_, place) => runId(keeperId, last + 1 + place));
}

function savedProcesses(
  { processes }: Cell,
  execs: ReadonlySet<string>,
  inside: (id: ExecId) => ExecId,
): SavedProcess[] {
  return [...processes.values()].flatMap(({ record: { end, ...record } }) => {
    const id = runId(record.id, record.run);
    if (end !== null || (record.spec.restart === null && !execs.has(id))) return [];
    const { name, spec, digest, run, restarts } = record;
    const keeperId = runOf(inside(id))?.process ?? record.id;
    return [{ id: record.id, keeperId, name, spec, digest, run, restarts }];
  });
}

const isUnderWay = ({ acknowledged, finishing }: OpenExec): boolean => acknowledged && !finishing;

const taken = (cell: Cell, name: string): HoldfastError =>
  new HoldfastError("checkpoint_exists", {
    sandboxId: cell.id,
    message: `The sandbox has a checkpoint ${name} already.`,
  });

function told(cell: Cell, error: unknown, { name }: Wanted): unknown {
  if (isHoldfastError(error)) return error;
  if (error instanceof StoreConflict && error.reason === "checkpoint_exists") return taken(cell, name);
  const refusal = cell.refusal();
  if (refusal !== null) return refusal;
  const cause = causeOf(error);
  const message = `The checkpoint could not be made: ${cause.message}`;
  return new HoldfastError("checkpoint_failed", { sandboxId: cell.id, message, cause: errorOf(cause) });
}

const wrongState = (cell: Cell): HoldfastError => {
  const { status } = cell.judge();
  const message = `No checkpoint can be made of a sandbox that is ${status}.`;
  return cell.refusal() ?? new HoldfastError("wrong_state", { sandboxId: cell.id, message });
};

const viewSaved = (saved: CheckpointSummary): Checkpoint => ({
  id: saved.id,
  name: saved.name,
  sandboxId: saved.sandboxId,
  kind: saved.kind,
  createdAt: new Date(saved.createdAt).toISOString(),
  generation: saved.generation,
  sizeBytes: saved.sizeBytes,
  memoryBytes: saved.memoryBytes,
  execs: [...saved.execIds],
});
