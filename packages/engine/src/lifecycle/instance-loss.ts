import type { Cause } from "@holdfast/contract";
import type { Launcher } from "../launch/launcher.ts";
import type { Reaper } from "../launch/reaper.ts";
import type { EngineEvents } from "../live/engine-events.ts";
import type { LiveSandbox } from "../live/live-sandbox.ts";
import type { EngineContext } from "../ports/context.ts";
import type { Standby } from "./suspend.ts";

interface LossParts {
  events: EngineEvents;
  launcher: Launcher;
  reaper: Reaper;
  standby: Standby;
}

/**
 * Handles lost instances: ends their execs, and launches the sandbox again or keeps it for inspection, as its restart
 * policy says. The sandbox's files stay in either case.
 */
export class InstanceLoss {
  readonly #context: EngineContext;
  readonly #parts: LossParts;

  constructor(context: EngineContext, parts: LossParts) {
    this.#context = context;
    this.#parts = parts;
  }

  /** Records that an instance is absent although no stop was requested, and handles the loss. */
  async died(live: LiveSandbox, generation: number, cause: Cause): Promise<void> {
    const decision = await live.decide({ type: "died", generation, cause });
    if (decision !== null) await this.handle(live, cause, { mayRun: false });
  }

  /**
   * Gives up an instance that could not be healed, and handles the loss. Processes of the instance may still run; they
   * are stopped.
   */
  async giveUp(live: LiveSandbox, generation: number, cause: Cause): Promise<void> {
    // A sandbox that serves again just before the decision is not given up.
    const isDegraded = () => live.judge().status === "degraded";
    const decision = await live.decide({ type: "given_up", generation, cause }, [], isDegraded);
    if (decision !== null) await this.handle(live, cause, { mayRun: true });
  }

  /** Handles a loss that is already recorded. */
  async handle(live: LiveSandbox, cause: Cause, { mayRun }: { mayRun: boolean }): Promise<void> {
    live.closeLink();
    // Processes that still run may exit by themselves, so their outcome is known only once the instance is absent.
    if (!mayRun) await this.#parts.events.processesEnded.run(live, { status: "lost", cause });
    if (live.record.phase.name === "queued") void this.relaunch(live);
    else this.#parts.reaper.reap(live);
  }

  /** Launches a sandbox again once nothing of its old instance remains. */
  async relaunch(live: LiveSandbox): Promise<void> {
    const { stopping } = this.#context;
    const { launcher, reaper, standby } = this.#parts;
    const isReady = () => live.record.lease.state === "none" || live.record.phase.name !== "queued";
    reaper.reap(live);
    await live.until(isReady, stopping).catch(() => undefined);
    if (stopping.aborted || live.record.phase.name !== "queued") return;
    live.detachLink();
    await launcher.launch(live);
    // The sandbox continues without the memory in its old checkpoints, so the checkpoints are useless.
    await standby.discard(live);
  }
}
