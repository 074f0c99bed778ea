import { causeOf, type ErrorCode, isHoldfastError, type SweepItem } from "@holdfast/contract";
import type { Admission } from "./admission.ts";
import type { Cell } from "./cell.ts";
import { item, toldAsOrdered } from "./sweep-items.ts";
import { factsOf, isMemoryAbove, type Licence, leastRecentlyUsed, mayRest, ruleNow } from "./sweep-rules.ts";
import type { World } from "./world.ts";

export interface RestingParts {
  cells(): Iterable<Cell>;
  /** Puts it to standby, if `holds` still says so at the last moment; rejects with why it stays awake. */
  rest(cell: Cell, why: string, holds: () => boolean): Promise<void>;
  admission: Admission;
}

/**
 * Puts to standby what is idle, for the host's sake: what comes before anything is removed. Memory runs out because of
 * sandboxes that nobody uses and nobody deletes; most of them may not be deleted, and all of them can sleep. It can do no
 * harm but a moment's wait, because a call wakes what sleeps, and a call that comes before it sleeps turns it back. As
 * many at a time as the host writes, none begun past a bound; what fails at it stays awake and is told.
 */
export class Resting {
  readonly #world: World;
  readonly #parts: RestingParts;

  constructor(world: World, parts: RestingParts) {
    this.#world = world;
    this.#parts = parts;
  }

  /** By someone's order: all that is idle, but for what the same order removes, while there is disk for memory. */
  async all(dryRun: boolean): Promise<SweepItem[]> {
    if (this.#world.driver.standby.kind === "memory" && !(await this.#hasDisk())) return [];
    const candidates = this.#candidates({ short: true });
    return (await this.#each(candidates, dryRun, async () => true)).map(toldAsOrdered);
  }

  /** While the host is short of memory; of nothing else, for standby takes disk. What failed at it lately is left alone. */
  async untilRelieved(dryRun: boolean): Promise<SweepItem[]> {
    const isShort = () => this.#isMemoryShort();
    if (!(await isShort())) return [];
    const now = this.#world.clock.now();
    const candidates = this.#candidates({ short: false }).filter((cell) => now >= cell.standbyNotBefore);
    return this.#each(candidates, dryRun, dryRun ? async () => true : isShort);
  }

  #candidates(licence: Licence): Cell[] {
    const now = this.#world.clock.now();
    return leastRecentlyUsed(this.#parts.cells()).filter(
      (cell) => cell.judge().status === "ready" && this.#isIdle(cell) && ruleNow(cell, licence, now) === null,
    );
  }

  async #each(
    cells: readonly Cell[],
    dryRun: boolean,
    isWanted: () => Promise<boolean>,
  ): Promise<SweepItem[]> {
    const { clock, numbers, stopping } = this.#world;
    const items: SweepItem[] = [];
    const endAt = clock.now() + numbers.pressureStandbyMs;
    const rest = cells.values();
    const worker = async () => {
      for (const cell of rest) {
        if (stopping.aborted || clock.now() >= endAt || !(await isWanted())) return;
        items.push(...(dryRun ? [item("idle", cell, 1, "would_put_to_standby")] : await this.#one(cell)));
      }
    };
    await Promise.all(Array.from({ length: numbers.standbysAtOnce }, worker));
    return items;
  }

  async #one(cell: Cell): Promise<SweepItem[]> {
    const { log } = this.#world;
    try {
      await this.#parts.rest(cell, "The host needs its memory, and nobody uses it.", () =>
        this.#isIdle(cell),
      );
      log.info({ sandbox: cell.id }, "an idle sandbox is put to standby for the host's sake");
      return [item("idle", cell, 1, "put_to_standby")];
    } catch (error) {
      // It is in use by now, or being deleted: nothing has failed.
      if (isHoldfastError(error) && OVERTAKEN.has(error.code)) return [];
      log.warn({ sandbox: cell.id, cause: causeOf(error) }, "an idle sandbox could not be put to standby");
      return [{ ...item("idle", cell, 1, "failed"), message: causeOf(error).message }];
    }
  }

  #isIdle(cell: Cell): boolean {
    const { clock, driver, numbers } = this.#world;
    const licence = { kind: driver.standby.kind, idleMs: numbers.pressureIdleMs };
    return mayRest({ ...factsOf(cell), now: clock.now() }, licence);
  }

  async #hasDisk(): Promise<boolean> {
    const capacity = await this.#parts.admission.measure().catch(() => null);
    return capacity !== null && capacity.diskFreeBytes > this.#world.numbers.diskReserveBytes;
  }

  async #isMemoryShort(): Promise<boolean> {
    const capacity = await this.#parts.admission.measure().catch(() => null);
    return capacity !== null && isMemoryAbove(capacity, this.#world.numbers.sweepPressureShare);
  }
}

/** Why one that was idle a moment ago may stay awake without anything being wrong. */
const OVERTAKEN = new Set<ErrorCode>(["standby_cancelled", "wrong_state", "sandbox_gone", "sandbox_failed"]);
