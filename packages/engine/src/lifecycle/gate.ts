import { HoldfastError } from "@holdfast/contract";
import { withinLaunch } from "../launch/launcher.ts";
import type { Prover } from "../launch/prover.ts";
import { within } from "../lib/deadline.ts";
import type { LiveSandbox } from "../live/live-sandbox.ts";
import { errorOf } from "../model/keeper-errors.ts";
import type { EngineContext } from "../ports/context.ts";
import type { Link } from "../ports/index.ts";
import type { Wakes } from "./wake.ts";

/**
 * Admits calls to a sandbox. The gate waits for a sandbox that is being created, wakes one in standby, and proves one
 * whose last proof is old or whose status is not ready. If the sandbox is broken, the caller thus gets the sandbox's
 * state as the error and not a failure of its own command.
 */
export class SandboxGate {
  readonly #context: EngineContext;
  readonly #prover: Prover;
  readonly #wakes: Wakes;

  constructor(context: EngineContext, prover: Prover, wakes: Wakes) {
    this.#context = context;
    this.#prover = prover;
    this.#wakes = wakes;
  }

  /** Returns the link of a sandbox that serves, or rejects with a typed error that says why it does not serve. */
  async pass(live: LiveSandbox, signal: AbortSignal): Promise<Link> {
    return this.passNow(live) ?? (await this.#wait(live, signal));
  }

  /** Returns the link without waiting; null if the caller must wait for the sandbox or for a proof. */
  passNow(live: LiveSandbox): Link | null {
    const link = live.link;
    if (link === null || live.judge().status !== "ready") return null;
    const age = this.#context.clock.now() - (live.health.provenAt ?? 0);
    if (age >= this.#context.numbers.proofFreshMs) return null;
    live.touch();
    return link;
  }

  async #wait(live: LiveSandbox, signal: AbortSignal): Promise<Link> {
    for (let tries = 1; tries <= this.#context.numbers.callTriesMax; tries += 1) {
      await this.#recovered(live, signal);
      await this.settled(live, signal);
      await this.#wakes.untilAwake(live, signal);
      // The wake may have ended in a new launch, so wait for the launch too.
      await this.settled(live, signal);
      const served = this.passNow(live);
      if (served !== null) return served;
      const proof = await this.#prover.prove(live);
      const refusal = live.refusal();
      if (refusal !== null) throw refusal;
      const link = live.link;
      if (live.judge().status === "ready" && proof.ok && link) {
        live.touch();
        return link;
      }
      // If the sandbox was suspended during its proof, it is woken again.
      if (!live.isAsleep) break;
    }
    if (live.isAsleep) {
      const message = "The sandbox was suspended again each time it was woken for the call.";
      throw new HoldfastError("sandbox_busy", { sandboxId: live.id, message });
    }
    const { cause } = live.judge();
    const message = `The sandbox does not serve: ${cause?.message ?? "it has no link"}`;
    throw new HoldfastError("sandbox_degraded", {
      sandboxId: live.id,
      message,
      ...(cause ? { cause: errorOf(cause) } : {}),
    });
  }

  /**
   * Waits a limited time until the sandbox is recovered after a start of the server. Until then even a sandbox that
   * serves has no link.
   */
  async #recovered(live: LiveSandbox, signal: AbortSignal): Promise<void> {
    if (!live.isRecovering) return;
    const { clock, numbers } = this.#context;
    const limit = { ms: numbers.linkWaitMs, what: "the recovery", signal };
    await within(clock, limit, (inner) => live.until(() => !live.isRecovering, inner)).catch(() =>
      signal.throwIfAborted(),
    );
  }

  /** Resolves when the sandbox is neither queued nor launching; rejects with the reason if it will never serve. */
  async settled(live: LiveSandbox, signal: AbortSignal): Promise<void> {
    const isSettled = () => live.record.phase.name !== "queued" && live.record.phase.name !== "launching";
    if (!isSettled())
      await withinLaunch(this.#context, live, signal, (inner) => live.until(isSettled, inner));
    const refusal = live.refusal();
    if (refusal !== null) throw refusal;
  }
}
