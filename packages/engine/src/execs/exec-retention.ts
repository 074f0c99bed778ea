import { causeOf, type ExecId, type SandboxId } from "@holdfast/contract";
import { recordEvent } from "../events/record-event.ts";
import { within } from "../lib/deadline.ts";
import { mapAtOnce } from "../lib/map-at-once.ts";
import { SerialQueue } from "../lib/serial-queue.ts";
import type { EngineEvents } from "../live/engine-events.ts";
import type { LiveSandbox } from "../live/live-sandbox.ts";
import { isNeededRun } from "../live/run-ids.ts";
import type { SandboxRegistry } from "../live/sandbox-registry.ts";
import { hasEnded } from "../model/sandbox-facts.ts";
import type { EngineContext } from "../ports/context.ts";
import { KeeperRefusal } from "../ports/index.ts";
import type { ExecRecord } from "../ports/records.ts";

/**
 * Number of ended execs that are forgotten in one batch. Without batches, a busy sandbox would have to forget one old
 * exec whenever another exec ends.
 */
const AT_ONCE = 64;
const SWEPT_AT_ONCE = 100;
const SANDBOXES_AT_ONCE = 8;
/** For how long a request sent over a lost link can still arrive, as a multiple of `linkDeadMs`. */
const LINKS_LINGER = 3;

interface Ended {
  id: ExecId;
  outputEnd: number;
}

interface RetainedExec {
  id: ExecId;
  bytes: number;
  /**
   * The exec is not forgotten before this time, even if the limits are exceeded; 0 if it may be forgotten at any time.
   */
  pinnedUntil: number;
}

/** The retained ended execs of one live sandbox, oldest first. */
interface RetainedExecs {
  execs: RetainedExec[];
  bytes: number;
  /** Ended execs that the keeper still holds in memory. */
  inKeeper: ExecId[];
}

/**
 * Decides how long an ended exec can be queried. An exec's record owns its journal, which lies in the control directory
 * of a live sandbox or, after a delete, among the archived journals. The journal is deleted before the record, so a crash
 * in between leads to a repeated deletion and never leaves a journal without an owner. The sweep deletes directories of
 * journals that no record owns. Execs are retained for `execRetentionMs`. The oldest are forgotten earlier if a sandbox
 * exceeds its limit on execs or bytes, or if all deleted sandboxes together exceed their limit on bytes, so that the
 * disk can't fill up.
 */
export class Retention {
  readonly #context: EngineContext;
  readonly #registry: SandboxRegistry;
  readonly #retained = new Map<SandboxId, RetainedExecs>();
  /** Runs sweeps one at a time: two concurrent sweeps would forget, and report, the same execs. */
  readonly #sweeps = new SerialQueue();
  /** Bytes of the journals of each deleted sandbox. Sandboxes whose journals were not measured yet are missing. */
  readonly #deletedBytes = new Map<SandboxId, number>();

  constructor(context: EngineContext, events: EngineEvents, registry: SandboxRegistry) {
    this.#context = context;
    this.#registry = registry;
    events.gone.subscribe((live) => this.leave(live.id));
  }

  /**
   * Whether the exec is retained beyond its normal time. This is true for the last run of a process until the process
   * has ended.
   */
  #isNeeded(sandboxId: SandboxId, id: ExecId): boolean {
    const live = this.#registry.live(sandboxId);
    return live !== undefined && isNeededRun(live, id);
  }

  async run(): Promise<void> {
    const { clock, numbers, stopping, log } = this.#context;
    while (!stopping.aborted) {
      await clock.sleep(numbers.retentionEveryMs, stopping).catch(() => undefined);
      if (stopping.aborted) return;
      await this.sweep().catch((error: unknown) => {
        if (!stopping.aborted) log.error({ cause: causeOf(error) }, "a sweep of ended execs failed");
      });
    }
  }

  /** Loads the retained execs of a live sandbox that ended under an earlier server. */
  async adopt(live: LiveSandbox): Promise<void> {
    const retained = this.#retainedOf(live.id);
    for (const { id, outputEnd } of await this.#context.store.retainedExecs(live.id))
      this.#put(retained, id, outputEnd);
  }

  /**
   * Returns those of the given execs that belong to the source sandbox of a fork. The fork's keeper knows them because
   * they came with the memory of the checkpoint. Returns an empty set if the sandbox is no fork.
   */
  async foreignExecs(live: LiveSandbox, ids: readonly ExecId[]): Promise<Set<ExecId>> {
    if (live.record.forkedFrom === null) return new Set();
    const own = new Set(this.#retainedOf(live.id).execs.map(({ id }) => id));
    const unsure = ids.filter((id) => !own.has(id));
    const found = await Promise.all(unsure.map((id) => this.#isOf(live, id)));
    return new Set(unsure.filter((_, index) => !found[index]));
  }

  /** Whether the exec belongs to this sandbox; true if the store can't be read. */
  async #isOf(live: LiveSandbox, id: ExecId): Promise<boolean> {
    try {
      return (await this.#context.store.exec(id))?.sandboxId === live.id;
    } catch {
      return true;
    }
  }

  /** Replaces the list of ended execs that the keeper holds in memory, oldest first. */
  inKeeper(live: LiveSandbox, ids: readonly ExecId[]): void {
    this.#retainedOf(live.id).inKeeper = [...ids];
  }

  /**
   * Retains an ended exec. `mayComeAgain` says that the exec's start may still arrive over a lost link. The keeper then
   * has to remember the exec until that link is certainly dead; otherwise it would run the command again.
   */
  ended(live: LiveSandbox, record: ExecRecord, { mayComeAgain }: { mayComeAgain: boolean }): void {
    if (hasEnded(live.record)) return;
    const { clock, numbers } = this.#context;
    const retained = this.#retainedOf(live.id);
    const pinnedUntil = mayComeAgain ? clock.now() + numbers.linkDeadMs * LINKS_LINGER : 0;
    this.#put(retained, record.id, record.outputEnd, pinnedUntil);
    retained.inKeeper.push(record.id);
    if (retained.inKeeper.length >= this.#context.numbers.execsInKeeper + AT_ONCE)
      this.#letKeeperForget(live, retained);
    if (this.#isOverfull(retained)) void this.#shrink(live, retained);
  }

  /** Drops the in-memory list of a deleted sandbox. From now on its retained execs are found by their records. */
  leave(id: SandboxId): void {
    this.#deletedBytes.set(id, this.#retained.get(id)?.bytes ?? 0);
    this.#retained.delete(id);
  }

  #retainedOf(id: SandboxId): RetainedExecs {
    const retained = this.#retained.get(id) ?? { execs: [], bytes: 0, inKeeper: [] };
    this.#retained.set(id, retained);
    return retained;
  }

  #put(retained: RetainedExecs, id: ExecId, outputEnd: number, pinnedUntil = 0): void {
    const bytes = this.#bytesOf(outputEnd);
    retained.execs.push({ id, bytes, pinnedUntil });
    retained.bytes += bytes;
  }

  #bytesOf(outputEnd: number): number {
    return Math.min(outputEnd, this.#context.numbers.journalCapBytes);
  }

  #letKeeperForget(live: LiveSandbox, retained: RetainedExecs): void {
    const link = live.link;
    for (const id of retained.inKeeper.splice(0, AT_ONCE)) {
      if (this.#isNeeded(live.id, id)) retained.inKeeper.push(id);
      else
        link?.forgetExec(id, { keepJournal: true }, this.#context.stopping).catch((error: unknown) => {
          // `exec_running` means that the keeper is still killing processes that the exec left running, so the exec is
          // forgotten in a later batch. Other errors are ignored: if the link is lost, `inKeeper` is built again from
          // the keeper's list on the next link.
          if (error instanceof KeeperRefusal && error.reason === "exec_running") retained.inKeeper.push(id);
        });
    }
  }

  #isOverfull({ execs, bytes }: RetainedExecs): boolean {
    const { execsKeptPerSandbox, journalsPerSandboxBytes } = this.#context.numbers;
    return execs.length >= execsKeptPerSandbox + AT_ONCE || bytes > journalsPerSandboxBytes;
  }

  async #shrink(live: LiveSandbox, retained: RetainedExecs): Promise<void> {
    const { clock, numbers, log } = this.#context;
    const now = clock.now();
    const gone: RetainedExec[] = [];
    while (
      retained.execs.length > numbers.execsKeptPerSandbox ||
      retained.bytes > numbers.journalsPerSandboxBytes
    ) {
      const isFree = ({ id, pinnedUntil }: RetainedExec) =>
        pinnedUntil <= now && !this.#isNeeded(live.id, id);
      const place = retained.execs.findIndex(isFree);
      const [oldest] = place < 0 ? [] : retained.execs.splice(place, 1);
      if (oldest === undefined) break;
      retained.bytes -= oldest.bytes;
      gone.push(oldest);
    }
    if (gone.length === 0) return;
    const ids = gone.map(({ id }) => id);
    log.info(
      { sandbox: live.id, execs: ids.length },
      "ended execs were forgotten early: the sandbox keeps too many",
    );
    try {
      await this.#collect(live.id, ids);
    } catch (error) {
      // The execs keep their records, so a later sweep forgets them when their retention has passed.
      log.warn({ sandbox: live.id, cause: causeOf(error) }, "ended execs could not be forgotten");
    }
  }

  /**
   * Forgets execs past their retention, deletes archived journals that no record owns, and returns the number of forgotten
   * execs.
   */
  sweep(): Promise<number> {
    return this.#sweeps.run(() => this.#sweep());
  }

  async #sweep(): Promise<number> {
    const { clock, numbers, store, stopping, log } = this.#context;
    const endedBefore = clock.now() - numbers.execRetentionMs;
    const exceptOf: SandboxId[] = [];
    let count = 0;
    while (!stopping.aborted) {
      const execs = await store.endedExecs({ endedBefore, exceptOf, limit: SWEPT_AT_ONCE });
      const groups = [...Map.groupBy(execs, (exec) => exec.sandboxId)];
      await mapAtOnce(groups, SANDBOXES_AT_ONCE, async ([sandboxId, all]) => {
        const group = all.filter(({ id }) => !this.#isNeeded(sandboxId, id));
        if (group.length > 0 && (await this.#isCollected(sandboxId, group))) count += group.length;
        else exceptOf.push(sandboxId);
      });
      if (execs.length < SWEPT_AT_ONCE) break;
    }
    if (count > 0) log.info({ execs: count }, "ended execs past their retention were forgotten");
    const left = await this.#dropUnowned();
    return count + (await this.#shrinkDeleted(left));
  }

  /**
   * Forgets execs of one sandbox and returns whether that succeeded. A failure must not stop the sweep of other
   * sandboxes.
   */
  async #isCollected(sandboxId: SandboxId, execs: readonly Ended[]): Promise<boolean> {
    const ids = execs.map(({ id }) => id);
    try {
      if (!(await this.#collect(sandboxId, ids))) return false;
      const bytes = execs.reduce((sum, { outputEnd }) => sum + this.#bytesOf(outputEnd), 0);
      const left = this.#deletedBytes.get(sandboxId);
      if (left !== undefined) this.#deletedBytes.set(sandboxId, Math.max(0, left - bytes));
      return true;
    } catch (error) {
      const cause = causeOf(error);
      this.#context.log.warn({ sandbox: sandboxId, cause }, "ended execs could not be forgotten");
      return false;
    }
  }

  /** Forgets execs in the keeper, on disk and in the store. Returns false if the keeper can't be reached at present. */
  async #collect(sandboxId: SandboxId, ids: readonly ExecId[]): Promise<boolean> {
    const { clock, numbers, journals, store, stopping } = this.#context;
    const live = this.#registry.live(sandboxId);
    // If a live sandbox has no link, its keeper can't be asked to forget the execs, so their journals and records stay
    // too. A keeper that still remembers a removed exec would otherwise answer a later exec of the same id with the end
    // of the removed one.
    if (live !== undefined && !hasEnded(live.record) && !live.link) return false;
    const limit = { ms: numbers.keeperCallMs, what: "removing journals", signal: stopping };
    await within(clock, limit, async (signal) => {
      await Promise.all(ids.map((id) => this.#forgetInKeeper(live, id, signal)));
      await journals.remove(sandboxId, ids, signal);
    });
    await store.commit({ changes: [{ kind: "exec.forget", ids }] });
    this.#removeRetained(sandboxId, new Set(ids));
    return true;
  }

  /**
   * Makes the keeper forget the exec and delete its journal. It is not an error if the keeper does not know the exec.
   */
  async #forgetInKeeper(live: LiveSandbox | undefined, id: ExecId, signal: AbortSignal): Promise<void> {
    const link = live?.link;
    await link?.forgetExec(id, { keepJournal: false }, signal).catch((error: unknown) => {
      if (!(error instanceof KeeperRefusal) || error.reason !== "no_such_exec") throw error;
    });
  }

  #removeRetained(sandboxId: SandboxId, ids: ReadonlySet<ExecId>): void {
    const retained = this.#retained.get(sandboxId);
    if (retained === undefined) return;
    retained.execs = retained.execs.filter(({ id }) => !ids.has(id));
    retained.bytes = retained.execs.reduce((total, { bytes }) => total + bytes, 0);
    retained.inKeeper = retained.inKeeper.filter((id) => !ids.has(id));
  }

  /**
   * Deletes archived journals that no exec record owns. Returns the deleted sandboxes whose archived journals still have
   * owners.
   */
  async #dropUnowned(): Promise<SandboxId[]> {
    const { clock, numbers, journals, stopping, log } = this.#context;
    const left: SandboxId[] = [];
    const limit = { ms: numbers.stopAttemptMs, what: "dropping journals", signal: stopping };
    for (const id of await within(clock, limit, (signal) => journals.archived(signal))) {
      try {
        // The sandbox still exists, or its delete is in progress. A delete moves the journals to the archive before it
        // stores the outcomes of the execs, so archived journals may still have no owner at this point.
        if (this.#registry.live(id) !== undefined) continue;
        if ((await this.#context.store.execs(id, { limit: 1 })).length > 0) {
          left.push(id);
          continue;
        }
        await within(clock, limit, (signal) => journals.drop(id, signal));
        log.debug({ sandbox: id }, "journals that no exec owns were dropped");
      } catch (error) {
        if (!stopping.aborted)
          log.warn({ sandbox: id, cause: causeOf(error) }, "journals could not be dropped");
      }
    }
    return left;
  }

  /** Forgets the oldest execs of deleted sandboxes until their journals fit their limit. Returns how many it forgot. */
  async #shrinkDeleted(sandboxes: readonly SandboxId[]): Promise<number> {
    const { clock, store, stopping } = this.#context;
    await this.#measureDeleted(sandboxes);
    const excess = this.#excess();
    const exceptOf: SandboxId[] = [];
    let count = 0;
    while (this.#excess() > 0 && !stopping.aborted) {
      const endedBefore = clock.now() + 1;
      const execs = await store.endedExecs({ endedBefore, exceptOf, limit: SWEPT_AT_ONCE });
      if (execs.length === 0) break;
      for (const [sandboxId, group] of Map.groupBy(this.#enough(execs), (exec) => exec.sandboxId)) {
        const isGone = this.#deletedBytes.has(sandboxId);
        if (isGone && (await this.#isCollected(sandboxId, group))) count += group.length;
        else exceptOf.push(sandboxId);
      }
    }
    if (count > 0) await this.#reportForgotten(count, excess);
    return count;
  }

  /**
   * Measures the journals of deleted sandboxes that this server has not measured yet. The sizes come from the records
   * of their execs.
   */
  async #measureDeleted(sandboxes: readonly SandboxId[]): Promise<void> {
    const known = new Set(sandboxes);
    for (const id of this.#deletedBytes.keys()) if (!known.has(id)) this.#deletedBytes.delete(id);
    for (const id of sandboxes) {
      if (this.#deletedBytes.has(id)) continue;
      const execs = await this.#context.store.retainedExecs(id);
      this.#deletedBytes.set(
        id,
        execs.reduce((sum, { outputEnd }) => sum + this.#bytesOf(outputEnd), 0),
      );
    }
  }

  /** Returns the number of bytes by which the journals of deleted sandboxes exceed their limit. */
  #excess(): number {
    const all = this.#deletedBytes.values().reduce((sum, bytes) => sum + bytes, 0);
    return all - this.#context.numbers.journalsOfDeletedBytes;
  }

  /**
   * Returns execs from the start of the list, and no more than are needed to free the excess, so that no exec is
   * forgotten earlier than necessary.
   */
  #enough(execs: readonly (Ended & { sandboxId: SandboxId })[]) {
    let excess = this.#excess();
    return execs.filter(({ sandboxId, outputEnd }) => {
      if (excess <= 0) return false;
      if (this.#deletedBytes.has(sandboxId)) excess -= this.#bytesOf(outputEnd);
      return true;
    });
  }

  async #reportForgotten(execs: number, excessBytes: number): Promise<void> {
    const { clock, log, numbers } = this.#context;
    const limitBytes = numbers.journalsOfDeletedBytes;
    const message = `${execs} ended execs of deleted sandboxes were forgotten early: their journals took too much of the disk.`;
    log.info({ execs, excessBytes, limitBytes }, message);
    const data = { execs, excessBytes, limitBytes };
    await recordEvent(this.#context, { at: clock.now(), type: "execs.forgotten", message, data });
  }
}
