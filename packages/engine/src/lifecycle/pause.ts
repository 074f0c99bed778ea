import { causeOf, HoldfastError, isHoldfastError } from "@holdfast/contract";
import type { Cell } from "./cell.ts";
import { raced, within } from "./clock.ts";
import { errorOf, type Gate } from "./gate.ts";
import type { Prover } from "./prover.ts";
import type { World } from "./world.ts";

export interface PauseParts {
  gate: Gate;
  prover: Prover;
  openLink(cell: Cell): void;
}

/**
 * Frozen in memory at the user's wish, and on again. The record says paused before the freeze and until after the thaw, so
 * that a server which ends in between leaves a sandbox that the next one freezes again: at no time does it run behind a
 * record that says it doesn't.
 */
export class Pauses {
  readonly #world: World;
  readonly #parts: PauseParts;
  readonly #turns = new WeakMap<Cell, Promise<unknown>>();

  constructor(world: World, parts: PauseParts) {
    this.#world = world;
    this.#parts = parts;
  }

  async pause(cell: Cell, signal: AbortSignal): Promise<void> {
    if (!isPaused(cell)) await this.#parts.gate.pass(cell, signal);
    await this.#inTurn(cell, () => this.#hold(cell, signal));
  }

  async #hold(cell: Cell, signal: AbortSignal): Promise<void> {
    const wasPaused = isPaused(cell);
    try {
      if (!wasPaused && (await cell.decide({ type: "pause" })) === null) throw wrongState(cell);
      cell.links?.close();
      cell.links = null;
      // What is being done to heal it may include a thaw.
      await raced(cell.mending, signal);
      await this.freeze(cell, signal);
    } catch (error) {
      // One that was paused before is not let go because it was to be paused again.
      if (!wasPaused) await this.#letGo(cell, this.#world.stopping).catch(() => undefined);
      throw told(cell, "paused", error);
    }
  }

  async freeze(cell: Cell, signal: AbortSignal): Promise<void> {
    const { clock, driver, numbers } = this.#world;
    const limit = { ms: numbers.freezeMs, what: "freezing", signal };
    await within(clock, limit, (inner) => driver.freeze(cell.id, inner));
  }

  /** Resolves when it is proven. One that isn't paused only has to serve. */
  async resume(cell: Cell, signal: AbortSignal): Promise<void> {
    await this.#inTurn(cell, () => this.#letGo(cell, signal));
    await this.#parts.gate.pass(cell, signal);
  }

  async #letGo(cell: Cell, signal: AbortSignal): Promise<void> {
    const { clock, driver, numbers, log } = this.#world;
    if (!isPaused(cell)) return;
    const limit = { ms: numbers.freezeMs, what: "thawing", signal };
    await within(clock, limit, (inner) => driver.thaw(cell.id, inner)).catch((error: unknown) => {
      signal.throwIfAborted();
      throw told(cell, "resumed", error);
    });
    // Proven first, so that it does not look broken for a moment; if it is, it says so from then on.
    this.#parts.openLink(cell);
    const proof = await this.#parts.prover.prove(cell);
    if (!proof.ok) log.warn({ sandbox: cell.id, checks: proof.checks }, "a resumed sandbox is not proven");
    await cell.decideSurely({ type: "resume" });
  }

  /** The freezer of one sandbox has one hand on it at a time: a freeze that comes late must not undo a thaw. */
  #inTurn<Result>(cell: Cell, work: () => Promise<Result>): Promise<Result> {
    const turn = (this.#turns.get(cell) ?? Promise.resolve()).then(work);
    this.#turns.set(
      cell,
      turn.catch(() => undefined),
    );
    return turn;
  }

  /** What is recorded as paused and seen to run is frozen again: a freeze may have failed, and the thaw behind it too. */
  tend(cells: Iterable<Cell>): void {
    for (const cell of cells) {
      const { observation } = cell.health;
      const isRunning = observation?.seen === "present" && observation.state === "running";
      if (!isPaused(cell) || !isRunning) continue;
      const freeze = async () => (isPaused(cell) ? this.freeze(cell, this.#world.stopping) : undefined);
      this.#inTurn(cell, freeze).catch((error: unknown) => {
        const cause = causeOf(error);
        this.#world.log.warn({ sandbox: cell.id, cause }, "a paused sandbox runs, and can't be frozen");
      });
    }
  }

  /** After a restart of the server: frozen again, whatever had come of it. */
  async keep(cell: Cell): Promise<void> {
    await this.#inTurn(cell, () => this.freeze(cell, this.#world.stopping)).catch((error: unknown) => {
      this.#world.log.error({ sandbox: cell.id, cause: causeOf(error) }, "a paused sandbox can't be frozen");
      throw error;
    });
  }
}

function told(cell: Cell, what: "paused" | "resumed", error: unknown): unknown {
  if (isHoldfastError(error)) return error;
  const cause = causeOf(error);
  const message = `The sandbox could not be ${what}: ${cause.message}`;
  const failed = new HoldfastError("sandbox_degraded", {
    sandboxId: cell.id,
    message,
    cause: errorOf(cause),
  });
  return (isPaused(cell) ? null : cell.refusal()) ?? failed;
}

const isPaused = ({ record }: Cell): boolean => record.phase.name === "paused";

const wrongState = (cell: Cell): HoldfastError => {
  const message = `A sandbox that is ${cell.judge().status} can't be paused.`;
  return cell.refusal() ?? new HoldfastError("wrong_state", { sandboxId: cell.id, message });
};
