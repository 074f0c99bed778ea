import { type Cause, causeOf } from "@holdfast/contract";
import type { Cell } from "./cell.ts";
import { within } from "./clock.ts";
import type { Launcher } from "./launcher.ts";
import type { Prover } from "./prover.ts";
import type { Reaper } from "./reaper.ts";
import type { World } from "./world.ts";

export interface RecoveryParts {
  launcher: Launcher;
  reaper: Reaper;
  prover: Prover;
  openLink(cell: Cell): void;
  died(cell: Cell, generation: number, cause: Cause): Promise<void>;
}

const AT_ONCE = 16;

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
          void this.#parts.launcher.launch(cell);
          return;
        case "launching":
          return await this.#recoverLaunching(cell);
        case "running":
          return await this.#recoverRunning(cell);
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
    await cell.decide({ type: "launch_failed", cause });
    this.#parts.reaper.tend(cell);
  }

  async #recoverRunning(cell: Cell): Promise<void> {
    const { generation } = cell.record;
    if ((await this.#recovered(cell)) === null) {
      const message = "The sandbox's processes ended while no server was running.";
      return this.#parts.died(cell, generation, { code: "keeper_died", message });
    }
    this.#parts.openLink(cell);
    const proof = await this.#parts.prover.prove(cell);
    // What was killed for memory before this server has been told by the one that saw it.
    const { observation } = cell.health;
    if (observation?.seen === "present") cell.oomKills = observation.oomKills;
    this.#world.log.info(
      { sandbox: cell.id, generation, proven: proof.ok },
      "a running sandbox was taken up again",
    );
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
