import { type Cause, causeOf } from "@holdfast/contract";
import type { Cell } from "./cell.ts";
import { within } from "./clock.ts";
import { errorOf } from "./gate.ts";
import type { Launcher } from "./launcher.ts";
import type { Pauses } from "./pauses.ts";
import type { Prover } from "./prover.ts";
import type { Reaper } from "./reaper.ts";
import type { Standby } from "./standby.ts";
import type { Wakes } from "./wakes.ts";
import type { World } from "./world.ts";

export interface RecoveryParts {
  launcher: Launcher;
  reaper: Reaper;
  prover: Prover;
  openLink(cell: Cell): void;
  /** Has the drives mounted that it is to have. */
  establish(cell: Cell, signal: AbortSignal): Promise<void>;
  died(cell: Cell, generation: number, cause: Cause): Promise<void>;
  pauses: Pauses;
  standby: Standby;
  wakes: Wakes;
  /** Launches what lost its memory again, once the old instance is gone. */
  restart(cell: Cell): Promise<void>;
}

const AT_ONCE = 16;
const PROOF_WAIT_MS = 1_000;

/**
 * Takes up sandboxes where the last server left them, and observes before it acts: what runs is linked and proven
 * again, what ended meanwhile is said to have ended, what was half launched is finished or cleaned, what waited waits on.
 * One that can't be looked at now is kept in mind and tried again; not knowing is never taken for absence.
 */
export class Recovery {
  readonly #world: World;
  readonly #parts: RecoveryParts;
  readonly #unrecovered = new Set<Cell>();

  constructor(world: World, parts: RecoveryParts) {
    this.#world = world;
    this.#parts = parts;
  }

  async recover(cells: readonly Cell[]): Promise<void> {
    const queue = cells.values();
    const worker = async () => {
      for (const cell of queue) await this.#recover(cell);
    };
    await Promise.all(Array.from({ length: Math.min(AT_ONCE, cells.length) }, worker));
  }

  /** Those that could not be looked at the last time. */
  async retry(): Promise<void> {
    const cells = [...this.#unrecovered];
    this.#unrecovered.clear();
    await this.recover(cells);
  }

  async #recover(cell: Cell): Promise<void> {
    const { log } = this.#world;
    try {
      switch (cell.record.phase.name) {
        case "queued":
          void this.#parts.restart(cell);
          return;
        case "launching":
          return await this.#recoverLaunching(cell);
        case "running":
          return await this.#recoverRunning(cell);
        case "paused":
          return await this.#recoverPaused(cell);
        case "suspending":
          return await this.#recoverSuspending(cell);
        case "waking":
          return await this.#recoverWaking(cell);
        case "standby":
          this.#parts.reaper.tend(cell);
          return await this.#parts.standby.discard(cell);
        case "deleting":
          // The delete was accepted, whatever became of the lease's stored form.
          await cell.decide({ type: "delete", cause: null });
          this.#parts.reaper.tend(cell);
          return;
        default:
          this.#parts.reaper.tend(cell);
      }
    } catch (error) {
      log.error(
        { sandbox: cell.id, cause: causeOf(error) },
        "recovery of a sandbox failed; it is tried again",
      );
      this.#unrecovered.add(cell);
    }
  }

  async #recoverLaunching(cell: Cell): Promise<void> {
    const { record } = cell;
    const instance = record.instance && (await this.#recovered(cell));
    if (instance) return this.#parts.launcher.prove(cell);
    const cause: Cause = {
      code: "server_restarted",
      message: "The server restarted while the sandbox was being launched.",
    };
    const decision = await cell.decide({ type: "launch_interrupted", cause });
    if (decision?.record.phase.name === "queued") void this.#parts.restart(cell);
    else this.#parts.reaper.tend(cell);
  }

  async #recoverRunning(cell: Cell): Promise<void> {
    const { generation } = cell.record;
    if ((await this.#recovered(cell)) === null) {
      return this.#parts.died(cell, generation, this.#whyGone(cell));
    }
    await this.#establish(cell);
    this.#parts.openLink(cell);
    // Its server may have ended before it could discard what this instance came from.
    void this.#parts.standby.discard(cell);
    await this.#countOomKills(cell);
    const proven = this.#prove(cell);
    // One that does not answer is no reason to keep the callers of all others waiting.
    const { clock, stopping } = this.#world;
    const over = new AbortController();
    const signal = AbortSignal.any([stopping, over.signal]);
    await Promise.race([proven, clock.sleep(PROOF_WAIT_MS, signal).catch(() => undefined)]);
    over.abort();
  }

  /** Its server may have ended between what it stored of a mount and what it did about it. */
  async #establish(cell: Cell): Promise<void> {
    const { clock, numbers, stopping } = this.#world;
    if (cell.record.mounts.length === 0) return;
    const limit = { ms: numbers.driveCallMs, what: "mounting", signal: stopping };
    await within(clock, limit, (signal) => this.#parts.establish(cell, signal));
  }

  async #prove(cell: Cell): Promise<void> {
    const { generation } = cell.record;
    const proof = await this.#parts.prover.prove(cell);
    this.#world.log.info(
      { sandbox: cell.id, generation, proven: proof.ok },
      "a running sandbox was taken up again",
    );
  }

  async #recoverPaused(cell: Cell): Promise<void> {
    const { generation } = cell.record;
    if ((await this.#recovered(cell)) === null)
      return this.#parts.died(cell, generation, this.#whyGone(cell));
    await this.#parts.pauses.keep(cell);
  }

  /** The server ended before it was stored that the memory is on disk: so it isn't, and the instance goes on. */
  async #recoverSuspending(cell: Cell): Promise<void> {
    const { generation } = cell.record;
    // Ordered of this server, before the sandbox could be looked at: whatever comes of that leaves it linked, or asleep.
    if (cell.suspension !== null || cell.saving) return;
    if ((await this.#recovered(cell)) === null)
      return this.#parts.died(cell, generation, this.#whyGone(cell));
    await this.#parts.standby.goOn(cell, RESTARTED_ASLEEP);
  }

  /** What was spent is followed; what was not goes back to sleep, once whatever was restored of it is gone. */
  async #recoverWaking(cell: Cell): Promise<void> {
    const { clock, numbers, stopping } = this.#world;
    const { generation, phase } = cell.record;
    if (phase.name !== "waking") return;
    if (!phase.consumed) {
      await cell.decide({ type: "wake_failed", generation, cause: RESTARTED_WAKING, blame: "nothing" });
      this.#parts.reaper.tend(cell);
      return;
    }
    const { wakes } = this.#parts;
    if ((await this.#recovered(cell)) === null)
      return wakes.failed(cell, generation, errorOf(this.#whyGone(cell)));
    const limit = { ms: numbers.wakeDeadlineMs, what: "the wake", signal: stopping };
    await within(clock, limit, (signal) => wakes.serve(cell, signal)).catch((error: unknown) =>
      wakes.failed(cell, generation, error),
    );
  }

  /** What was killed for memory before this server has been told by the one that saw it. */
  async #countOomKills(cell: Cell): Promise<void> {
    const { clock, driver, numbers } = this.#world;
    const limit = { ms: numbers.observeEveryMs, what: "observing" };
    const seen = await within(clock, limit, (signal) => driver.observe([cell.id], signal)).catch(() => null);
    const observation = seen?.get(cell.id);
    if (observation?.seen === "present") cell.oomKills = observation.oomKills;
  }

  #whyGone({ record: { instance } }: Cell): Cause {
    const rebooted = instance !== null && instance.hostBootId !== this.#world.driver.hostBootId;
    return rebooted
      ? { code: "host_rebooted", message: "The host was restarted, and with it every process ended." }
      : { code: "keeper_died", message: "The sandbox's processes ended while no server was running." };
  }

  /** The instance as the driver finds it, null where it is gone. Not knowing is an error, never absence. */
  async #recovered(cell: Cell) {
    const { clock, driver, numbers } = this.#world;
    const { instance } = cell.record;
    if (instance === null) return null;
    return within(clock, { ms: numbers.stopAttemptMs, what: "finding the instance again" }, (signal) =>
      driver.recover(instance, signal),
    );
  }
}

const RESTARTED_ASLEEP: Cause = {
  code: "server_restarted",
  message: "The server restarted before the memory was on disk.",
};

const RESTARTED_WAKING: Cause = {
  code: "server_restarted",
  message: "The server restarted while the sandbox was being woken.",
};
