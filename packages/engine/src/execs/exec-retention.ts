import { causeOf, type ExecId, type SandboxId } from "@holdfast/contract";
import type { Cell } from "./cell.ts";
import { within } from "./clock.ts";
import { KeeperRefusal } from "./ports.ts";
import type { ExecRecord } from "./records.ts";
import type { World } from "./world.ts";

/** Many at a time, so that an exec in a busy sandbox is not charged for the end of an old one. */
const AT_ONCE = 64;
const SWEPT_AT_ONCE = 100;
/** How often the time after which a link is dead may pass before nothing more can come out of it. */
const LINKS_LINGER = 3;

interface Ended {
  id: ExecId;
  outputEnd: number;
}

interface Kept {
  id: ExecId;
  bytes: number;
  /** Not forgotten before, however much there is; 0: at any time. */
  pinnedUntil: number;
}

/** What is kept of the ended execs of one live sandbox, oldest first. */
interface Shelf {
  kept: Kept[];
  bytes: number;
  /** Those that the keeper still has in memory. */
  inKeeper: ExecId[];
}

/**
 * How long an exec can be asked for after its end. Its record owns its journal, wherever that lies: in the control
 * directory of a live sandbox or, after a delete, among those kept. The journal goes first, then the record, so a crash in
 * between is repeated and never leaves a journal without an owner; a directory that lost its last owner all the same is
 * found and dropped by the sweep. Time is the promise; beyond a number of execs or bytes per sandbox, or of bytes of
 * all deleted sandboxes together, the oldest go early, because neither one busy sandbox nor many short ones may fill a disk.
 */
export class Retention {
  readonly #world: World;
  readonly #cellOf: (id: SandboxId) => Cell | undefined;
  readonly #shelves = new Map<SandboxId, Shelf>();
  /** Bytes of journals of sandboxes that are gone, as far as they are known. */
  readonly #leftBytes = new Map<SandboxId, number>();
  /** Whether it is still needed, however long ago it ended: the last run of a process that is not over is. */
  isHeld: (sandboxId: SandboxId, id: ExecId) => boolean = () => false;

  constructor(world: World, cellOf: (id: SandboxId) => Cell | undefined) {
    this.#world = world;
    this.#cellOf = cellOf;
  }

  async run(): Promise<void> {
    const { clock, numbers, stopping, log } = this.#world;
    while (!stopping.aborted) {
      await clock.sleep(numbers.retentionEveryMs, stopping).catch(() => undefined);
      if (stopping.aborted) return;
      await this.sweep().catch((error: unknown) => {
        if (!stopping.aborted) log.error({ cause: causeOf(error) }, "a sweep of ended execs failed");
      });
    }
  }

  /** Takes up what an earlier server kept of a live sandbox. */
  async adopt(cell: Cell): Promise<void> {
    const shelf = this.#shelf(cell.id);
    for (const { id, outputEnd } of await this.#world.store.keptExecs(cell.id))
      this.#put(shelf, id, outputEnd);
  }

  /** Those that came with the memory of a fork, and are on record where that was taken, if anywhere. */
  async strangers(cell: Cell, ids: readonly ExecId[]): Promise<Set<ExecId>> {
    if (cell.record.forkedFrom === null) return new Set();
    const kept = new Set(this.#shelf(cell.id).kept.map(({ id }) => id));
    const unsure = ids.filter((id) => !kept.has(id));
    const found = await Promise.all(unsure.map((id) => this.#isOf(cell, id)));
    return new Set(unsure.filter((_, index) => !found[index]));
  }

  /** Not being able to tell counts as yes. */
  async #isOf(cell: Cell, id: ExecId): Promise<boolean> {
    try {
      return (await this.#world.store.exec(id))?.sandboxId === cell.id;
    } catch {
      return true;
    }
  }

  /** What the keeper turns out to have of ended execs, oldest first. */
  inKeeper(cell: Cell, ids: readonly ExecId[]): void {
    this.#shelf(cell.id).inKeeper = [...ids];
  }

  /** One whose start may still be on its way to the keeper, on a link that was lost, is known there until that is over. */
  ended(cell: Cell, record: ExecRecord, { mayComeAgain }: { mayComeAgain: boolean }): void {
    if (cell.refusal() !== null) return;
    const { clock, numbers } = this.#world;
    const shelf = this.#shelf(cell.id);
    const pinnedUntil = mayComeAgain ? clock.now() + numbers.linkDeadMs * LINKS_LINGER : 0;
    this.#put(shelf, record.id, record.outputEnd, pinnedUntil);
    shelf.inKeeper.push(record.id);
    if (shelf.inKeeper.length >= this.#world.numbers.execsInKeeper + AT_ONCE)
      this.#letKeeperForget(cell, shelf);
    if (this.#isOverfull(shelf)) void this.#shrink(cell, shelf);
  }

  /** The sandbox is gone; what is kept of its execs is found by their records from now on. */
  leave(id: SandboxId): void {
    this.#leftBytes.set(id, this.#shelves.get(id)?.bytes ?? 0);
    this.#shelves.delete(id);
  }

  #shelf(id: SandboxId): Shelf {
    const shelf = this.#shelves.get(id) ?? { kept: [], bytes: 0, inKeeper: [] };
    this.#shelves.set(id, shelf);
    return shelf;
  }

  #put(shelf: Shelf, id: ExecId, outputEnd: number, pinnedUntil = 0): void {
    const bytes = this.#bytesOf(outputEnd);
    shelf.kept.push({ id, bytes, pinnedUntil });
    shelf.bytes += bytes;
  }

  #bytesOf(outputEnd: number): number {
    return Math.min(outputEnd, this.#world.numbers.journalCapBytes);
  }

  #letKeeperForget(cell: Cell, shelf: Shelf): void {
    const link = cell.links?.current;
    for (const id of shelf.inKeeper.splice(0, AT_ONCE)) {
      if (this.isHeld(cell.id, id)) shelf.inKeeper.push(id);
      else
        link?.forgetExec(id, { keepJournal: true }, this.#world.stopping).catch((error: unknown) => {
          // What it left running is still being killed; its turn comes again. After a lost link the keeper is asked anew.
          if (error instanceof KeeperRefusal && error.reason === "exec_running") shelf.inKeeper.push(id);
        });
    }
  }

  #isOverfull({ kept, bytes }: Shelf): boolean {
    const { execsKeptPerSandbox, journalsPerSandboxBytes } = this.#world.numbers;
    return kept.length >= execsKeptPerSandbox + AT_ONCE || bytes > journalsPerSandboxBytes;
  }

  async #shrink(cell: Cell, shelf: Shelf): Promise<void> {
    const { clock, numbers, log } = this.#world;
    const now = clock.now();
    const gone: Kept[] = [];
    while (shelf.kept.length > numbers.execsKeptPerSandbox || shelf.bytes > numbers.journalsPerSandboxBytes) {
      const isFree = ({ id, pinnedUntil }: Kept) => pinnedUntil <= now && !this.isHeld(cell.id, id);
      const place = shelf.kept.findIndex(isFree);
      const [oldest] = place < 0 ? [] : shelf.kept.splice(place, 1);
      if (oldest === undefined) break;
      shelf.bytes -= oldest.bytes;
      gone.push(oldest);
    }
    if (gone.length === 0) return;
    const ids = gone.map(({ id }) => id);
    log.info(
      { sandbox: cell.id, execs: ids.length },
      "ended execs were forgotten early: the sandbox keeps too many",
    );
    try {
      await this.#collect(cell.id, ids);
    } catch (error) {
      // They are past their time sooner or later, and the sweep finds them by their records.
      log.warn({ sandbox: cell.id, cause: causeOf(error) }, "ended execs could not be forgotten");
    }
  }

  /** Forgets what is past its time, and drops kept journals that no record owns any more. Says how many execs. */
  async sweep(): Promise<number> {
    const { clock, numbers, store, stopping, log } = this.#world;
    const endedBefore = clock.now() - numbers.execRetentionMs;
    const exceptOf: SandboxId[] = [];
    let count = 0;
    while (!stopping.aborted) {
      const execs = await store.endedExecs({ endedBefore, exceptOf, limit: SWEPT_AT_ONCE });
      for (const [sandboxId, all] of Map.groupBy(execs, (exec) => exec.sandboxId)) {
        const group = all.filter(({ id }) => !this.isHeld(sandboxId, id));
        if (group.length > 0 && (await this.#isCollected(sandboxId, group))) count += group.length;
        else exceptOf.push(sandboxId);
      }
      if (execs.length < SWEPT_AT_ONCE) break;
    }
    if (count > 0) log.info({ execs: count }, "ended execs past their retention were forgotten");
    const left = await this.#dropUnowned();
    return count + (await this.#shrinkLeft(left));
  }

  /** One sandbox that can't be cleaned now keeps none of the others waiting. */
  async #isCollected(sandboxId: SandboxId, execs: readonly Ended[]): Promise<boolean> {
    const ids = execs.map(({ id }) => id);
    try {
      if (!(await this.#collect(sandboxId, ids))) return false;
      const bytes = execs.reduce((sum, { outputEnd }) => sum + this.#bytesOf(outputEnd), 0);
      const left = this.#leftBytes.get(sandboxId);
      if (left !== undefined) this.#leftBytes.set(sandboxId, Math.max(0, left - bytes));
      return true;
    } catch (error) {
      const cause = causeOf(error);
      this.#world.log.warn({ sandbox: sandboxId, cause }, "ended execs could not be forgotten");
      return false;
    }
  }

  /** False where they have to wait. */
  async #collect(sandboxId: SandboxId, ids: readonly ExecId[]): Promise<boolean> {
    const { clock, numbers, journals, store, stopping } = this.#world;
    const cell = this.#cellOf(sandboxId);
    // A keeper that can't be asked now would still have in memory what is forgotten here.
    if (cell?.refusal() === null && !cell.links?.current) return false;
    const limit = { ms: numbers.keeperCallMs, what: "removing journals", signal: stopping };
    await within(clock, limit, async (signal) => {
      await Promise.all(ids.map((id) => this.#forgetInKeeper(cell, id, signal)));
      await journals.remove(sandboxId, ids, signal);
    });
    await store.commit({ changes: [{ kind: "exec.forget", ids }] });
    this.#strike(sandboxId, new Set(ids));
    return true;
  }

  /** The keeper has it in memory, or its journal, or neither. */
  async #forgetInKeeper(cell: Cell | undefined, id: ExecId, signal: AbortSignal): Promise<void> {
    const link = cell?.links?.current;
    await link?.forgetExec(id, { keepJournal: false }, signal).catch((error: unknown) => {
      if (!(error instanceof KeeperRefusal) || error.reason !== "no_such_exec") throw error;
    });
  }

  #strike(sandboxId: SandboxId, ids: ReadonlySet<ExecId>): void {
    const shelf = this.#shelves.get(sandboxId);
    if (shelf === undefined) return;
    shelf.kept = shelf.kept.filter(({ id }) => !ids.has(id));
    shelf.bytes = shelf.kept.reduce((total, { bytes }) => total + bytes, 0);
    shelf.inKeeper = shelf.inKeeper.filter((id) => !ids.has(id));
  }

  /** Says of which sandboxes that are gone journals are kept. */
  async #dropUnowned(): Promise<SandboxId[]> {
    const { clock, numbers, journals, stopping, log } = this.#world;
    const left: SandboxId[] = [];
    const limit = { ms: numbers.stopAttemptMs, what: "dropping journals", signal: stopping };
    for (const id of await within(clock, limit, (signal) => journals.kept(signal))) {
      try {
        // A delete in progress keeps journals before its execs have their outcomes.
        if (this.#cellOf(id) !== undefined) continue;
        if ((await this.#world.store.execs(id, { limit: 1 })).length > 0) {
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

  /** Brings what is kept of sandboxes that are gone under its limit, the oldest first. Says how many execs that took. */
  async #shrinkLeft(sandboxes: readonly SandboxId[]): Promise<number> {
    const { clock, store, stopping } = this.#world;
    await this.#measureLeft(sandboxes);
    const excess = this.#excess();
    const exceptOf: SandboxId[] = [];
    let count = 0;
    while (this.#excess() > 0 && !stopping.aborted) {
      const endedBefore = clock.now() + 1;
      const execs = await store.endedExecs({ endedBefore, exceptOf, limit: SWEPT_AT_ONCE });
      if (execs.length === 0) break;
      for (const [sandboxId, group] of Map.groupBy(this.#enough(execs), (exec) => exec.sandboxId)) {
        const isGone = this.#leftBytes.has(sandboxId);
        if (isGone && (await this.#isCollected(sandboxId, group))) count += group.length;
        else exceptOf.push(sandboxId);
      }
    }
    if (count > 0) await this.#tellForgotten(count, excess);
    return count;
  }

  /** Of those that an earlier server let go, what the records say. */
  async #measureLeft(sandboxes: readonly SandboxId[]): Promise<void> {
    const kept = new Set(sandboxes);
    for (const id of this.#leftBytes.keys()) if (!kept.has(id)) this.#leftBytes.delete(id);
    for (const id of sandboxes) {
      if (this.#leftBytes.has(id)) continue;
      const execs = await this.#world.store.keptExecs(id);
      this.#leftBytes.set(
        id,
        execs.reduce((sum, { outputEnd }) => sum + this.#bytesOf(outputEnd), 0),
      );
    }
  }

  /** How much more there is than may be. */
  #excess(): number {
    const all = this.#leftBytes.values().reduce((sum, bytes) => sum + bytes, 0);
    return all - this.#world.numbers.journalsOfDeletedBytes;
  }

  /** As many of the first as free what is too much: no more goes before its time than has to. */
  #enough(execs: readonly (Ended & { sandboxId: SandboxId })[]) {
    let excess = this.#excess();
    return execs.filter(({ sandboxId, outputEnd }) => {
      if (excess <= 0) return false;
      if (this.#leftBytes.has(sandboxId)) excess -= this.#bytesOf(outputEnd);
      return true;
    });
  }

  async #tellForgotten(execs: number, excessBytes: number): Promise<void> {
    const { clock, log, numbers, store } = this.#world;
    const limitBytes = numbers.journalsOfDeletedBytes;
    const message = `${execs} ended execs of deleted sandboxes were forgotten early: their journals took too much of the disk.`;
    log.info({ execs, excessBytes, limitBytes }, message);
    const data = { execs, excessBytes, limitBytes };
    await store.commit({
      changes: [],
      events: [{ at: clock.now(), type: "execs.forgotten", message, data }],
    });
  }
}
