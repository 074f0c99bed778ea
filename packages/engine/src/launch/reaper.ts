import { causeOf } from "@holdfast/contract";
import type { Cell } from "./cell.ts";
import { within } from "./clock.ts";
import { stopDueAt } from "./lease.ts";
import { destroysFiles } from "./machine.ts";
import type { World } from "./world.ts";

/**
 * Pays what a lease owes: ends the instance, observes its absence and, where nothing is to be kept, removes the rest.
 * The attempt is stored before the first signal is sent and the lease is given up only on observed absence, so a crash
 * at any point leaves a duty that the next server finds. `unknown` counts as a failed attempt, never as absence.
 */
export class Reaper {
  readonly #world: World;
  readonly #tended = new Set<Cell>();
  readonly #onReleased: (cell: Cell) => Promise<void>;

  constructor(world: World, onReleased: (cell: Cell) => Promise<void>) {
    this.#world = world;
    this.#onReleased = onReleased;
  }

  /** Works on the cell's lease until it owes nothing. Calling it again while it does changes nothing. */
  tend(cell: Cell, options: { graceMs: number } = { graceMs: 0 }): void {
    if (this.#tended.has(cell)) return;
    this.#tended.add(cell);
    void this.#tend(cell, options.graceMs).finally(() => this.#tended.delete(cell));
  }

  async #tend(cell: Cell, graceMs: number): Promise<void> {
    const { clock, numbers, stopping, log } = this.#world;
    while (!stopping.aborted) {
      try {
        await this.#fence(cell);
        const due = stopDueAt(cell.record.lease, clock.now(), numbers);
        if (due === null) return;
        await this.#waitFor(cell, due);
        await this.#attempt(cell, graceMs);
      } catch (error) {
        if (stopping.aborted) return;
        // The store refused. The duty is still recorded, at the latest step that it took; go on from there.
        log.error({ sandbox: cell.id, cause: causeOf(error) }, "a stop attempt could not be recorded");
        await clock.sleep(1_000, stopping).catch(() => undefined);
      }
    }
  }

  /** An attempt that is recorded as under way though nobody works on it: its server, or the record of its end, was lost. */
  async #fence(cell: Cell): Promise<void> {
    const { lease } = cell.record;
    if (lease.state !== "stopping") return;
    await cell.decide({
      type: "stop_failed",
      attemptId: lease.attemptId,
      error: "the attempt was broken off",
    });
  }

  /** Until the next attempt is due, or the duty changes (a delete that overtakes a back-off). */
  async #waitFor(cell: Cell, due: number): Promise<void> {
    const { clock, stopping } = this.#world;
    const ms = due - clock.now();
    if (ms <= 0) return;
    const lease = cell.record.lease;
    const changed = new AbortController();
    const signal = AbortSignal.any([stopping, changed.signal]);
    await Promise.race([
      clock.sleep(ms, signal),
      cell.until(() => cell.record.lease !== lease, signal),
    ]).finally(() => changed.abort());
  }

  async #attempt(cell: Cell, graceMs: number): Promise<void> {
    const { clock, ids, numbers, log, stopping } = this.#world;
    const attemptId = ids.attempt();
    const deadline = clock.now() + numbers.stopAttemptMs;
    if ((await cell.decide({ type: "stop_attempt", attemptId, deadline })) === null) return;
    const limit = { ms: numbers.stopAttemptMs, what: "stopping the instance", signal: stopping };
    try {
      await within(clock, limit, (signal) => this.#stopAndClean(cell, graceMs, signal));
    } catch (error) {
      if (stopping.aborted) return;
      const { message } = causeOf(error);
      log.warn({ sandbox: cell.id, cause: causeOf(error) }, "a stop attempt failed");
      await cell.decide({ type: "stop_failed", attemptId, error: message });
      return;
    }
    await cell.decide({ type: "absence_observed", attemptId });
  }

  async #stopAndClean(cell: Cell, graceMs: number, signal: AbortSignal): Promise<void> {
    const { driver, journals, log } = this.#world;
    cell.links?.close();
    await Promise.all([cell.launching, cell.mending]);
    const seen = await driver.stop(cell.id, { graceMs }, signal);
    if (seen.seen === "unknown") throw new Error(`absence could not be observed: ${seen.why}`);
    if (seen.seen === "present") throw new Error(`process ${seen.pid} is still there`);
    // Before the files go: what the journals tell of execs that were under way can't be learned afterwards.
    await this.#onReleased(cell);
    if (!destroysFiles(cell.record)) return;
    // Execs can be asked for after their sandbox is gone. That they can't is no reason to keep the sandbox. What is to be
    // launched once more makes them anew.
    if (cell.record.phase.name === "queued") return driver.destroy(cell.id, signal);
    await journals.keep(cell.id, signal).catch((error: unknown) => {
      log.error({ sandbox: cell.id, cause: causeOf(error) }, "journals could not be kept");
    });
    await driver.destroy(cell.id, signal);
  }
}
