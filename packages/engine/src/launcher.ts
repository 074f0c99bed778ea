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
  readonly #line: Place[] = [];
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

  /** From now to proven ready, the waiting line included. Never rejects: the outcome is in the cell. */
  async launch(cell: Cell): Promise<void> {
    const { clock, numbers, stopping } = this.#world;
    const signal = AbortSignal.any([cell.fence.signal, stopping]);
    const limit = { ms: numbers.createDeadlineMs, what: "the launch", signal };
    await this.#settle(cell, () =>
      within(clock, limit, (inner) => this.#inLine(inner, () => this.#steps(cell, inner))),
    );
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
      await cell.decideSurely({ type: "launch_failed", cause });
      this.#onFailed(cell);
    }
  }

  async #steps(cell: Cell, signal: AbortSignal): Promise<void> {
    const { clock, driver, numbers } = this.#world;
    const begun = await cell.decide({ type: "launch", deadline: clock.now() + numbers.createDeadlineMs });
    if (begun === null) throw new Error("the sandbox is no longer to be launched");
    const { id: sandboxId, name, generation, spec } = begun.record;
    const order = { sandboxId, name, generation, image: spec.image, resources: spec.resources };
    signal.throwIfAborted();
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
    const keeperBootId = cell.links?.current?.keeper.bootId;
    if (keeperBootId === undefined) throw new Error("the link was lost after the proof");
    const provenAt = Date.parse(proof.at);
    const proven = await cell.decide({ type: "proven", generation, provenAt, keeperBootId });
    if (proven === null) throw new Error("the launch was overtaken");
  }

  /** Runs the work in one of the few places. Whoever gives up waiting leaves the line without having had one. */
  async #inLine(signal: AbortSignal, work: () => Promise<void>): Promise<void> {
    if (this.#running < this.#world.numbers.launchesAtOnce) this.#running += 1;
    else await this.#waitInLine(signal);
    try {
      signal.throwIfAborted();
      await work();
    } finally {
      // The place goes to the next in line; only an empty line gives it up.
      const next = this.#line.shift();
      if (next) next.take();
      else this.#running -= 1;
    }
  }

  async #waitInLine(signal: AbortSignal): Promise<void> {
    const { promise, resolve: take } = Promise.withResolvers<void>();
    const place = { take };
    this.#line.push(place);
    const left = () => {
      const at = this.#line.indexOf(place);
      if (at >= 0) this.#line.splice(at, 1);
    };
    signal.addEventListener("abort", left, { once: true });
    await raced(promise, signal);
  }
}

interface Place {
  take(): void;
}

function asHoldfastError(error: unknown): unknown {
  if (error instanceof DeadlinePassed) return new HoldfastError("deadline", { message: error.message });
  return error;
}
