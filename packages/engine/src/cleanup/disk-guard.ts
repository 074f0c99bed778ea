import { type Cause, causeOf } from "@holdfast/contract";
import type { Admission } from "./admission.ts";
import type { Cell } from "./cell.ts";
import { raced, within } from "./clock.ts";
import { mb } from "./megabytes.ts";
import type { Capacity } from "./ports.ts";
import type { World } from "./world.ts";

const SAMPLE_MS = 1_000;
const CALL_MS = 10_000;

export interface GuardParts {
  cells(): Iterable<Cell>;
  admission: Admission;
  /** Removes what is known to be stale. */
  clean(): Promise<unknown>;
}

/**
 * Keeps one sandbox from filling the disk of all. Admission stops new ones at the reserve; this acts on those that run:
 * first what is stale goes, and if the disk still runs out, the sandbox that writes fastest is frozen, with an event that
 * names it. Nothing of it is lost: it is thawed when the reserve is free again, and can be deleted meanwhile. Freezing is
 * not recorded: what an earlier server froze is thawed by the ladder, which leaves it alone while the disk is low.
 */
export class DiskGuard {
  readonly #world: World;
  readonly #parts: GuardParts;
  #isLow = false;
  #hasLooked = false;

  constructor(world: World, parts: GuardParts) {
    this.#world = world;
    this.#parts = parts;
  }

  /** Whether the disk is short of its reserve, as far as is known: before the first look it may be. */
  get isLow(): boolean {
    return this.#isLow || !this.#hasLooked;
  }

  async run(): Promise<void> {
    const { clock, numbers, stopping, log } = this.#world;
    while (!stopping.aborted) {
      await this.look().catch((error: unknown) => {
        if (!stopping.aborted) log.warn({ cause: causeOf(error) }, "the disk could not be guarded");
      });
      await clock.sleep(numbers.diskGuardEveryMs, stopping).catch(() => undefined);
    }
  }

  async look(): Promise<void> {
    const { diskReserveBytes, diskFreezeBytes } = this.#world.numbers;
    const capacity = await this.#parts.admission.measure();
    this.#hasLooked = true;
    if (capacity.diskFreeBytes >= diskReserveBytes) return this.#relieve(capacity);
    if (!this.#isLow) {
      this.#isLow = true;
      await this.#say(
        "disk.low",
        `The disk has ${mb(capacity.diskFreeBytes)} MB free, less than its reserve.`,
      );
      await this.#parts.clean();
    }
    if (capacity.diskFreeBytes < diskFreezeBytes) await this.#freezeFastest();
  }

  async #freezeFastest(): Promise<void> {
    const { clock, stopping, numbers } = this.#world;
    const running = [...this.#parts.cells()].filter(
      ({ record, health }) => record.phase.name === "running" && health.frozenFor === null,
    );
    const before = await this.#written(running);
    await clock.sleep(SAMPLE_MS, stopping);
    const after = await this.#written(running);
    const rates = running.map((cell) => ({
      cell,
      rate: ((after.get(cell.id) ?? 0) - (before.get(cell.id) ?? 0)) / (SAMPLE_MS / 1_000),
    }));
    const fastest = rates.sort((a, b) => b.rate - a.rate)[0];
    if (fastest === undefined || fastest.rate < numbers.diskFreezeRateBytes) return;
    // What has begun to sleep, or to wake, meanwhile is in other hands.
    if (fastest.cell.record.phase.name !== "running") return;
    await this.#freeze(fastest.cell, fastest.rate);
  }

  async #written(cells: readonly Cell[]) {
    const { clock, driver, stopping } = this.#world;
    const limit = { ms: CALL_MS, what: "asking who writes", signal: stopping };
    return within(clock, limit, (signal) =>
      driver.written(
        cells.map(({ id }) => id),
        signal,
      ),
    );
  }

  async #freeze(cell: Cell, rate: number): Promise<void> {
    const { clock, driver, stopping } = this.#world;
    const message = `It was frozen: it wrote ${mb(rate)} MB a second while the disk ran out. It goes on when there is room again.`;
    const cause: Cause = { code: "disk_filler", message };
    await within(clock, { ms: CALL_MS, what: "freezing", signal: stopping }, async (signal) => {
      // What is being done to heal it may include a thaw.
      await raced(cell.mending, signal);
      await driver.freeze(cell.id, signal);
    });
    cell.learn({ frozenFor: cause });
    await this.#say("sandbox.frozen", message, cell);
  }

  /** There is room: whoever is frozen goes on. */
  async #relieve(capacity: Capacity): Promise<void> {
    const { clock, driver, stopping, log } = this.#world;
    for (const cell of this.#parts.cells()) {
      if (cell.record.phase.name !== "running" || cell.health.frozenFor === null) continue;
      try {
        await within(clock, { ms: CALL_MS, what: "thawing", signal: stopping }, (signal) =>
          driver.thaw(cell.id, signal),
        );
        cell.learn({ frozenFor: null });
        log.info({ sandbox: cell.id }, "a frozen sandbox goes on");
      } catch (error) {
        log.warn({ sandbox: cell.id, cause: causeOf(error) }, "a sandbox could not be thawed");
      }
    }
    if (!this.#isLow) return;
    this.#isLow = false;
    await this.#say("disk.recovered", `The disk has ${mb(capacity.diskFreeBytes)} MB free again.`);
  }

  async #say(
    type: "disk.low" | "disk.recovered" | "sandbox.frozen",
    message: string,
    cell?: Cell,
  ): Promise<void> {
    const { clock, store, log } = this.#world;
    log.warn({ sandbox: cell?.id }, message);
    const about = cell === undefined ? {} : { sandboxId: cell.id, generation: cell.record.generation };
    await store
      .commit({ changes: [], events: [{ at: clock.now(), type, message, ...about }] })
      .catch((error: unknown) => log.error({ cause: causeOf(error) }, "an event could not be stored"));
  }
}
