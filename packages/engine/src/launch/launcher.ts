import { causeOf, HoldfastError, type Numbers } from "@holdfast/contract";
import type { Admission } from "./admission.ts";
import type { Cell } from "./cell.ts";
import { DeadlinePassed, raced, within } from "./clock.ts";
import { FairLine } from "./fair-line.ts";
import { forkSource, hasServed } from "./machine.ts";
import { wantedMounts } from "./mount-step.ts";
import type { Prover } from "./prover.ts";
import type { SandboxRecord } from "./records.ts";
import { failedProof, lacksMountsOnly } from "./status.ts";
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
  readonly #onServing: (cell: Cell) => Promise<void>;
  readonly #onProven: (cell: Cell) => void;
  readonly #establish: (cell: Cell, signal: AbortSignal) => Promise<void>;
  readonly #admission: Admission;
  readonly #line = new FairLine<Place>();
  #running = 0;

  constructor(
    world: World,
    parts: {
      prover: Prover;
      admission: Admission;
      openLink: (cell: Cell) => void;
      onFailed: (cell: Cell) => void;
      /** It is proven, and nobody has been told so yet. */
      onServing: (cell: Cell) => Promise<void>;
      /** It serves, by its record too. */
      onProven: (cell: Cell) => void;
      /** Has the drives mounted that it is to have. */
      establish: (cell: Cell, signal: AbortSignal) => Promise<void>;
    },
  ) {
    this.#world = world;
    this.#prover = parts.prover;
    this.#admission = parts.admission;
    this.#openLink = parts.openLink;
    this.#onFailed = parts.onFailed;
    this.#onServing = parts.onServing;
    this.#onProven = parts.onProven;
    this.#establish = parts.establish;
  }

  get waiting(): number {
    return this.#line.length;
  }

  /** Refuses where a launch would fail before it began. */
  admit(): void {
    if (this.#line.length >= this.#world.numbers.launchesWaiting)
      throw new HoldfastError("capacity", { message: "The waiting line for launches is full." });
    this.#admission.checkLaunches();
  }

  /** From now to proven ready, the waiting line included. Never rejects: the outcome is in the cell. */
  async launch(cell: Cell): Promise<void> {
    const signal = AbortSignal.any([cell.fence.signal, this.#world.stopping]);
    await this.#settle(cell, () => this.#inLine(cell, signal, () => this.#tried(cell, signal)));
  }

  /** What becomes of a launch decides whether others are tried. One that was overtaken says nothing about the host. */
  async #tried(cell: Cell, signal: AbortSignal): Promise<void> {
    const { clock, numbers } = this.#world;
    const limit = { ms: launchDeadlineMs(cell.record, numbers), what: "the launch", signal };
    await this.#allowed(cell, signal);
    try {
      await within(clock, limit, (inner) => this.#steps(cell, inner));
    } catch (error) {
      // Nor does one that was made of what another sandbox had in its memory and wrote.
      const isItsOwn =
        cell.fence.signal.aborted || this.#world.stopping.aborted || forkSource(cell.record) !== null;
      this.#admission.launchEnded(isItsOwn ? null : causeOf(asHoldfastError(error)));
      throw error;
    }
    this.#admission.launched();
  }

  /** A new one is refused while launches keep failing. One that has served waits: others' failures are no end of its own. */
  async #allowed(cell: Cell, signal: AbortSignal): Promise<void> {
    while (!this.#admission.mayLaunch()) {
      if (!hasServed(cell.record)) throw new HoldfastError("launches_suspended");
      await this.#world.clock.sleep(ASK_AGAIN_MS, signal);
    }
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
    const deadline = clock.now() + launchDeadlineMs(cell.record, numbers);
    const begun = await cell.decide({ type: "launch", deadline });
    if (begun === null) throw new Error("the sandbox is no longer to be launched");
    const { id: sandboxId, name, generation, spec } = begun.record;
    const origin = forkSource(begun.record);
    const order = {
      sandboxId,
      name,
      generation,
      image: spec.image,
      resources: spec.resources,
      restart: hasServed(begun.record),
      fork: origin === null ? undefined : { ...origin, id: origin.checkpointId },
      mounts: wantedMounts(begun.record),
      onStep: (step: string) => cell.progress(step),
    };
    cell.progress("launching");
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
    await this.#establish(cell, signal);
    cell.progress("proving");
    this.#openLink(cell);
    const proof = await raced(this.#prover.prove(cell), signal);
    const mayLackMounts = hasServed(cell.record) && lacksMountsOnly(proof);
    if (!proof.ok && !mayLackMounts)
      throw new HoldfastError("proof_failed", { message: failedProof(proof).message });
    const keeperBootId = cell.links?.current?.keeper.bootId;
    if (keeperBootId === undefined) throw new Error("the link was lost after the proof");
    await raced(this.#onServing(cell), signal);
    const provenAt = Date.parse(proof.at);
    const lacking = proof.ok ? undefined : failedProof(proof);
    const proven = await cell.decide({ type: "proven", generation, provenAt, keeperBootId, lacking });
    if (proven === null) throw new Error("the launch was overtaken");
    cell.progress("ready");
    this.#onProven(cell);
  }

  /** Runs the work in one of the few places. Whoever gives up waiting leaves the line without having had one. */
  async #inLine(cell: Cell, signal: AbortSignal, work: () => Promise<void>): Promise<void> {
    if (this.#running < this.#world.numbers.launchesAtOnce) this.#running += 1;
    else await this.#waitInLine(cell, signal);
    try {
      signal.throwIfAborted();
      await work();
    } finally {
      this.#passOn();
    }
  }

  async #waitInLine(cell: Cell, signal: AbortSignal): Promise<void> {
    const { clock, numbers } = this.#world;
    const { promise, resolve: take } = Promise.withResolvers<void>();
    const place = { take };
    cell.progress("waiting");
    this.#line.join(cell.record.owner, place);
    const limit = { ms: numbers.launchQueueMs, what: "waiting for a turn to be launched", signal };
    let taken = false;
    try {
      await within(clock, limit, () => promise.then(() => (taken = true)));
    } catch (error) {
      // A place that was given at the very moment of giving up goes on to the next.
      if (!this.#line.leave(place) && !taken) this.#passOn();
      throw error;
    }
  }

  /** The place goes to the next in line; only an empty line gives it up. */
  #passOn(): void {
    const next = this.#line.next();
    if (next) next.take();
    else this.#running -= 1;
  }
}

/** A fork has to be copied first, which may take as long as the checkpoint took. */
export const launchDeadlineMs = (
  record: SandboxRecord,
  { createDeadlineMs, standbyDeadlineMs }: Numbers,
): number => createDeadlineMs + (forkSource(record) === null ? 0 : standbyDeadlineMs);

const ASK_AGAIN_MS = 1_000;

interface Place {
  take(): void;
}

function asHoldfastError(error: unknown): unknown {
  if (error instanceof DeadlinePassed) return new HoldfastError("deadline", { message: error.message });
  return error;
}
