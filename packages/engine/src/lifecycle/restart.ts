import { type Cause, HoldfastError } from "@holdfast/contract";
import type { Admission } from "./admission.ts";
import type { Cell } from "./cell.ts";
import { within } from "./clock.ts";
import type { Launcher } from "./launcher.ts";
import type { World } from "./world.ts";

export interface RestartParts {
  admission: Admission;
  launcher: Launcher;
  /** Ends what is left of the instance, and launches it again. */
  begin(cell: Cell, cause: Cause): void;
}

const ORDERED: Cause = { code: "restart_ordered", message: "Somebody ordered a restart." };

/**
 * Started anew on its files, at somebody's wish: what a person does about a sandbox that hangs, and the way back for one
 * that failed. What is in its memory is lost, which is why nobody but its policy does this unasked. One that failed has
 * given its place up, so it is admitted like a new one.
 */
export class Restarts {
  readonly #world: World;
  readonly #parts: RestartParts;

  constructor(world: World, parts: RestartParts) {
    this.#world = world;
    this.#parts = parts;
  }

  /** Resolves when it is decided and on its way. One that is being launched already is on its way. */
  async order(cell: Cell, signal: AbortSignal): Promise<void> {
    const { phase } = cell.record;
    if (phase.name === "queued" || phase.name === "launching") return;
    if (phase.name === "failed") await this.#revive(cell, signal);
    else if ((await this.#decide(cell)) === null) throw refusalOf(cell);
    this.#parts.begin(cell, ORDERED);
  }

  async #decide(cell: Cell) {
    return cell.decide({ type: "restart", cause: ORDERED }).catch((error: unknown) => {
      const message = "The restart could not be recorded, so it was not begun.";
      throw new HoldfastError("internal", { sandboxId: cell.id, message, cause: error });
    });
  }

  async #revive(cell: Cell, signal: AbortSignal): Promise<void> {
    const { clock, numbers } = this.#world;
    const { admission, launcher } = this.#parts;
    const limit = { ms: numbers.stopAttemptMs, what: "ending what is left of it", signal };
    const isOver = () => cell.record.lease.state === "none" || cell.record.phase.name !== "failed";
    await within(clock, limit, (inner) => cell.until(isOver, inner)).catch(() => signal.throwIfAborted());
    const { owner } = cell.record;
    await admission.admit(owner);
    signal.throwIfAborted();
    launcher.admit();
    admission.checkCaps(owner);
    cell.reviving = true;
    try {
      if ((await this.#decide(cell)) === null) throw refusalOf(cell);
    } finally {
      cell.reviving = false;
    }
  }
}

function refusalOf(cell: Cell): HoldfastError {
  const { id: sandboxId, record } = cell;
  const { phase, nameHeld, lease } = record;
  if (phase.name === "deleting" || phase.name === "gone")
    return cell.refusal() ?? new HoldfastError("sandbox_gone", { sandboxId });
  const isUnmade = phase.name === "failed" && !nameHeld;
  if (phase.name === "failed" && !isUnmade && lease.state !== "none") {
    const message = "What is left of its last instance is still being ended; then it can be restarted.";
    return new HoldfastError("sandbox_degraded", { sandboxId, message });
  }
  const message = isUnmade
    ? "It was never ready, so there are no files to start it on. Create a new one."
    : `A sandbox that is ${cell.judge().status} can't be restarted${FIRST[phase.name] ?? "."}`;
  return new HoldfastError("wrong_state", { sandboxId, message });
}

const FIRST: Partial<Record<Cell["record"]["phase"]["name"], string>> = {
  paused: ": resume it first.",
  standby: ": wake it first.",
  suspending: ": wake it first.",
  waking: " until it is awake.",
};
