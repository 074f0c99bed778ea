import { causeOf, HoldfastError } from "@holdfast/contract";
import type { Cell } from "./cell.ts";
import { DeadlinePassed, raced, within } from "./clock.ts";
import type { Prover } from "./prover.ts";
import { failedProof } from "./status.ts";
import type { World } from "./world.ts";

/**
 * Takes a queued sandbox to proven ready: a place in the line, the lease stored, the instance launched, the link up,
 * the proof passed. Whatever fails on the way ends in `launch_failed`, which gives the name back and leaves the lease
 * owing a stop; the reaper pays it. A few launches run at once, the rest wait in order, in a line of bounded length.
 */
export class Launcher {
  readonly #world: World;
  readonly #prover: Prover;
  readonly #openLink: (cell: Cell) => void;
  readonly #onFailed: (cell: Cell) => void;
  readonly #line: (() => void)[] = [];
  #running = 0;

  constructor(world: World, prover: Prover, openLink: (cell: Cell) => void, onFailed: (cell: Cell) => void) {
    this.#world = world;
    this.#prover = prover;
    this.#openLink = openLink;
    this.#onFailed = onFailed;
  }

  get lineIsFull(): boolean {
    return this.#line.length >= this.#world.numbers.launchesWaiting;
  }

  /** Never rejects: the outcome is in the cell. */
  async launch(cell: Cell): Promise<void> {
    await this.#inLine(async () => {
      const { clock, numbers, stopping } = this.#world;
      const signal = AbortSignal.any([cell.fence.signal, stopping]);
      const limit = { ms: numbers.createDeadlineMs, what: "the launch", signal };
      await this.#settle(cell, () => within(clock, limit, (inner) => this.#steps(cell, inner)));
    });
  }

  /** The last steps again, for an instance that an earlier server had launched but not proven. */
  async prove(cell: Cell): Promise<void> {
    const { clock, numbers } = this.#world;
    const limit = { ms: numbers.createDeadlineMs, what: "the proof", signal: cell.fence.signal };
    await this.#settle(cell, () => within(clock, limit, (signal) => this.#prove(cell, signal)));
  }

  async #settle(cell: Cell, work: () => Promise<void>): Promise<void> {
    const { log, stopping } = this.#world;
    try {
      await work();
    } catch (error) {
      if (stopping.aborted) return;
      const cause = causeOf(asHoldfastError(error));
      log.warn({ sandbox: cell.id, cause }, "the launch failed");
      await cell.decide({ type: "launch_failed", cause }).catch((failure: unknown) => {
        log.error({ sandbox: cell.id, cause: causeOf(failure) }, "a failed launch could not be recorded");
      });
      this.#onFailed(cell);
    }
  }

  async #steps(cell: Cell, signal: AbortSignal): Promise<void> {
    const { clock, driver, numbers } = this.#world;
    const begun = await cell.decide({ type: "launch", deadline: clock.now() + numbers.createDeadlineMs });
    if (begun === null) throw new Error("the sandbox is no longer to be launched");
    const { id: sandboxId, name, generation, spec } = begun.record;
    const order = { sandboxId, name, generation, image: spec.image, resources: spec.resources };
    const launch = driver.launch(order, signal);
    cell.launching = launch.catch(() => undefined);
    const instance = await raced(launch, signal);
    const launched = await cell.decide({ type: "launched", generation, instance });
    if (launched === null) throw new Error("the launch was overtaken");
    await this.#prove(cell, signal);
  }

  async #prove(cell: Cell, signal: AbortSignal): Promise<void> {
    const { generation } = cell.record;
    this.#openLink(cell);
    const proof = await raced(this.#prover.prove(cell), signal);
    if (!proof.ok) throw new HoldfastError("proof_failed", { message: failedProof(proof).message });
    const proven = await cell.decide({ type: "proven", generation, provenAt: Date.parse(proof.at) });
    if (proven === null) throw new Error("the launch was overtaken");
  }

  async #inLine(work: () => Promise<void>): Promise<void> {
    if (this.#running < this.#world.numbers.launchesAtOnce) this.#running += 1;
    else await new Promise<void>((resolve) => this.#line.push(resolve));
    try {
      await work();
    } finally {
      // The place goes to the next in line; only an empty line gives it up.
      const next = this.#line.shift();
      if (next) next();
      else this.#running -= 1;
    }
  }
}

function asHoldfastError(error: unknown): unknown {
  if (error instanceof DeadlinePassed) return new HoldfastError("deadline", { message: error.message });
  return error;
}
