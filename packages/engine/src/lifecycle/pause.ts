import { causeOf, type HoldfastError } from "@holdfast/contract";
import type { LinkOpener } from "../launch/link-opener.ts";
import type { Prover } from "../launch/prover.ts";
import { raced, within } from "../lib/deadline.ts";
import { KeyedSerialQueue } from "../lib/serial-queue.ts";
import type { LiveSandbox } from "../live/live-sandbox.ts";
import type { EngineContext } from "../ports/context.ts";
import { requireCapability } from "../ports/index.ts";
import type { SandboxGate } from "./gate.ts";
import { toError, wrongState } from "./to-error.ts";

interface PauseParts {
  gate: SandboxGate;
  prover: Prover;
  links: LinkOpener;
}

/**
 * Freezes sandboxes in memory on request, and thaws them. The record says `paused` from before the freeze until after
 * the thaw. If the server ends during the freeze or the thaw, the next server freezes the sandbox again: a sandbox that
 * is recorded as paused never keeps running.
 */
export class Pauses {
  readonly #context: EngineContext;
  readonly #parts: PauseParts;
  readonly #turns: KeyedSerialQueue<LiveSandbox>;

  constructor(context: EngineContext, parts: PauseParts) {
    this.#context = context;
    this.#turns = new KeyedSerialQueue({ limit: context.numbers.changesWaiting });
    this.#parts = parts;
  }

  /**
   * Pauses the sandbox. If the caller disconnects while the pause is queued, nothing changes; a pause that has begun is
   * completed.
   */
  async pause(live: LiveSandbox, signal: AbortSignal): Promise<void> {
    requireCapability(this.#context.driver, "freezer");
    if (!isPaused(live)) await this.#parts.gate.pass(live, signal);
    await raced(
      this.#turns.run(live, () => this.#freezeOrUndo(live), signal),
      signal,
    );
  }

  async #freezeOrUndo(live: LiveSandbox): Promise<void> {
    const signal = this.#lifetime(live);
    const wasPaused = isPaused(live);
    try {
      if (!wasPaused && (await live.decide({ type: "pause" })) === null) throw notPausable(live);
      live.detachLink();
      // A healing in progress may thaw the sandbox, so wait for its end.
      await raced(live.healing, signal);
      await this.freeze(live, signal);
    } catch (error) {
      // If the sandbox was already paused before this request, it stays paused. Otherwise the pause is undone.
      if (!wasPaused) await this.#thaw(live, this.#context.stopping).catch(() => undefined);
      throw toPauseError(live, "paused", error);
    }
  }

  /**
   * Returns the signal for a pause or resume that has begun. It aborts when the sandbox is deleted or the server stops,
   * but not when the caller disconnects.
   */
  #lifetime(live: LiveSandbox): AbortSignal {
    return AbortSignal.any([live.deletedSignal, this.#context.stopping]);
  }

  async freeze(live: LiveSandbox, signal: AbortSignal): Promise<void> {
    const { clock, driver, numbers } = this.#context;
    const limit = { ms: numbers.freezeMs, what: "freezing", signal };
    await within(clock, limit, (inner) => requireCapability(driver, "freezer").freeze(live.id, inner));
  }

  /**
   * Thaws the sandbox if it is paused, and resolves when it serves. If the caller disconnects while the resume is
   * queued, nothing changes; a resume that has begun is completed.
   */
  async resume(live: LiveSandbox, signal: AbortSignal): Promise<void> {
    await raced(
      this.#turns.run(live, () => this.#thaw(live, this.#lifetime(live)), signal),
      signal,
    );
    await this.#parts.gate.pass(live, signal);
  }

  async #thaw(live: LiveSandbox, signal: AbortSignal): Promise<void> {
    const { clock, driver, numbers, log } = this.#context;
    if (!isPaused(live)) return;
    const limit = { ms: numbers.freezeMs, what: "thawing", signal };
    await within(clock, limit, (inner) => requireCapability(driver, "freezer").thaw(live.id, inner)).catch(
      (error: unknown) => {
        signal.throwIfAborted();
        throw toPauseError(live, "resumed", error);
      },
    );
    // The sandbox is proven before the resume is recorded, so that it does not appear degraded in between.
    this.#parts.links.open(live);
    const proof = await this.#parts.prover.prove(live);
    if (!proof.ok) log.warn({ sandbox: live.id, checks: proof.checks }, "a resumed sandbox is not proven");
    await live.decideSurely({ type: "resume" });
  }

  /** Runs the freezes and thaws of one sandbox one after the other: a late freeze must not undo a thaw. */
  #inTurn<Result>(live: LiveSandbox, work: () => Promise<Result>): Promise<Result> {
    return this.#turns.run(live, work);
  }

  /**
   * Freezes sandboxes again that are recorded as paused but observed running, which happens if a freeze and its undo
   * both failed.
   */
  refreeze(allLive: Iterable<LiveSandbox>): void {
    for (const live of allLive) {
      const { observation } = live.health;
      const isRunning = observation?.seen === "present" && observation.state === "running";
      if (!isPaused(live) || !isRunning) continue;
      this.#inTurn(live, () => this.#freezeIfPaused(live)).catch((error: unknown) => {
        const cause = causeOf(error);
        this.#context.log.warn({ sandbox: live.id, cause }, "a paused sandbox runs and could not be frozen");
      });
    }
  }

  async #freezeIfPaused(live: LiveSandbox): Promise<void> {
    if (isPaused(live)) await this.freeze(live, this.#context.stopping);
  }

  /** Freezes a paused sandbox again after a restart of the server. */
  async recover(live: LiveSandbox): Promise<void> {
    await this.#inTurn(live, () => this.#freezeIfPaused(live)).catch((error: unknown) => {
      this.#context.log.error(
        { sandbox: live.id, cause: causeOf(error) },
        "a paused sandbox can't be frozen",
      );
      throw error;
    });
  }
}

function toPauseError(live: LiveSandbox, what: "paused" | "resumed", error: unknown): unknown {
  const refusal = isPaused(live) ? null : live.refusal();
  return toError(
    live,
    { code: "sandbox_degraded", what: `The sandbox could not be ${what}`, refusal },
    error,
  );
}

const isPaused = ({ record }: LiveSandbox): boolean => record.phase.name === "paused";

const notPausable = (live: LiveSandbox): HoldfastError =>
  wrongState(live, `A sandbox that is ${live.judge().status} can't be paused.`);
