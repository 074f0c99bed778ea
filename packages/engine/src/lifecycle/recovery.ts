import { type Cause, causeOf } from "@holdfast/contract";
import type { Launcher } from "../launch/launcher.ts";
import type { LinkOpener } from "../launch/link-opener.ts";
import type { Prover } from "../launch/prover.ts";
import type { Reaper } from "../launch/reaper.ts";
import { soonest, within } from "../lib/deadline.ts";
import { mapAtOnce } from "../lib/map-at-once.ts";
import { OneShot } from "../lib/one-shot.ts";
import type { EngineEvents } from "../live/engine-events.ts";
import type { LiveSandbox } from "../live/live-sandbox.ts";
import { errorOf } from "../model/keeper-errors.ts";
import { wantedMounts } from "../model/mount-machine.ts";
import type { EngineContext } from "../ports/context.ts";
import type { InstanceLoss } from "./instance-loss.ts";
import type { Pauses } from "./pause.ts";
import type { Standby } from "./suspend.ts";
import type { Wakes } from "./wake.ts";

interface RecoveryParts {
  events: EngineEvents;
  launcher: Launcher;
  loss: InstanceLoss;
  reaper: Reaper;
  prover: Prover;
  links: LinkOpener;
  pauses: Pauses;
  standby: Standby;
  wakes: Wakes;
}

const AT_ONCE = 16;
/** How long the start of the server waits for the recovery of one sandbox. */
const START_WAIT_MS = 1_000;

/**
 * Recovers the sandboxes of the last server. It observes before it acts: running instances are linked and proven again,
 * absent ones are recorded as ended, half-done launches are finished or cleaned up, and queued sandboxes stay queued.
 * If a sandbox can't be observed, its recovery is retried later; an unknown observation is never treated as absence.
 * The recovery of a sandbox that does not respond continues while the server serves the others. Every step therefore
 * checks that the sandbox is still as it was found.
 */
export class Recovery {
  readonly #context: EngineContext;
  readonly #parts: RecoveryParts;
  readonly #unrecovered = new Set<LiveSandbox>();
  #retrying = 0;

  constructor(context: EngineContext, parts: RecoveryParts) {
    this.#context = context;
    this.#parts = parts;
  }

  /** Begins the recovery of all sandboxes, and waits for each of them for a limited time. */
  async recover(allLive: readonly LiveSandbox[]): Promise<void> {
    const { clock, stopping } = this.#context;
    await mapAtOnce(allLive, AT_ONCE, async (live) => {
      const over = new OneShot();
      void this.#recover(live).finally(() => over.set());
      await soonest(clock, START_WAIT_MS, over, stopping);
    });
  }

  /**
   * Retries the recovery of sandboxes that could not be observed. Returns before the recoveries end, so that an
   * unreachable sandbox delays neither the caller nor other sandboxes.
   */
  retry(): void {
    for (const live of this.#unrecovered) {
      if (this.#retrying >= AT_ONCE) return;
      this.#unrecovered.delete(live);
      this.#retrying += 1;
      void this.#recover(live).finally(() => {
        this.#retrying -= 1;
      });
    }
  }

  async #recover(live: LiveSandbox): Promise<void> {
    const { log, stopping } = this.#context;
    try {
      switch (live.record.phase.name) {
        case "queued":
          void this.#parts.loss.relaunch(live);
          return;
        case "launching":
          return await this.#recoverLaunching(live);
        case "running":
          return await this.#recoverRunning(live);
        case "paused":
          return await this.#recoverPaused(live);
        case "suspending":
          return await this.#recoverSuspending(live);
        case "waking":
          return await this.#recoverWaking(live);
        case "standby":
          this.#parts.reaper.reap(live);
          return await this.#parts.standby.discard(live);
        case "deleting":
          // The delete is already recorded. It is decided again to repair a lease that was stored without a stop.
          await live.decide({ type: "delete", cause: null });
          this.#parts.reaper.reap(live);
          return;
        default:
          this.#parts.reaper.reap(live);
      }
    } catch (error) {
      if (stopping.aborted) return;
      log.error(
        { sandbox: live.id, cause: causeOf(error) },
        "recovery of a sandbox failed; it is tried again",
      );
      this.#unrecovered.add(live);
    } finally {
      live.endRecovery();
    }
  }

  async #recoverLaunching(live: LiveSandbox): Promise<void> {
    const isSame = unchanged(live);
    const instance = await this.#recovered(live);
    if (!isSame()) return;
    if (instance) return this.#parts.launcher.prove(live);
    const cause: Cause = {
      code: "server_restarted",
      message: "The server restarted while the sandbox was being launched.",
    };
    const decision = await live.decide({ type: "launch_interrupted", cause });
    if (decision?.record.phase.name === "queued") void this.#parts.loss.relaunch(live);
    else this.#parts.reaper.reap(live);
  }

  async #recoverRunning(live: LiveSandbox): Promise<void> {
    const isSame = unchanged(live);
    const { generation } = live.record;
    // Another part may open the link before the drives are mounted. Marking the paths as open prevents processes from
    // starting until then.
    for (const { path } of wantedMounts(live.record)) live.noteOpenMountPath(path);
    if ((await this.#recovered(live)) === null) {
      return this.#parts.loss.died(live, generation, this.#whyGone(live));
    }
    if (!isSame()) return;
    await this.#mountDrives(live);
    if (!isSame()) return;
    this.#parts.links.open(live);
    // The last server may have stopped before it discarded the checkpoint from which this instance was restored.
    void this.#parts.standby.discard(live);
    await this.#countOomKills(live);
    await this.#prove(live);
  }

  /**
   * Mounts the drives in the record, because the last server may have stopped between storing a mount and mounting it.
   */
  async #mountDrives(live: LiveSandbox): Promise<void> {
    const { clock, numbers, stopping } = this.#context;
    if (live.record.mounts.length === 0) return;
    const limit = { ms: numbers.driveCallMs, what: "mounting", signal: stopping };
    await within(clock, limit, (signal) => this.#parts.events.instanceReady.run(live, signal));
  }

  async #prove(live: LiveSandbox): Promise<void> {
    const { generation } = live.record;
    const proof = await this.#parts.prover.prove(live);
    this.#context.log.info(
      { sandbox: live.id, generation, proven: proof.ok },
      "a running sandbox was recovered",
    );
  }

  async #recoverPaused(live: LiveSandbox): Promise<void> {
    const isSame = unchanged(live);
    const { generation } = live.record;
    if ((await this.#recovered(live)) === null)
      return this.#parts.loss.died(live, generation, this.#whyGone(live));
    if (!isSame()) return;
    await this.#parts.pauses.recover(live);
  }

  /**
   * Returns the instance to service, because the last server stopped before it recorded that the memory was on disk.
   */
  async #recoverSuspending(live: LiveSandbox): Promise<void> {
    const isSame = unchanged(live);
    const { generation } = live.record;
    // A retried recovery may find a suspension or checkpoint that this server has begun since the first try. A
    // suspension or checkpoint of this server completes by itself.
    if (live.suspension !== null || live.isSaving) return;
    if ((await this.#recovered(live)) === null)
      return this.#parts.loss.died(live, generation, this.#whyGone(live));
    if (!isSame()) return;
    await this.#parts.standby.abandonSuspension(live, RESTARTED_ASLEEP);
  }

  /**
   * Continues a wake whose checkpoint is already spent. Otherwise stops the restored instance and returns the sandbox
   * to standby.
   */
  async #recoverWaking(live: LiveSandbox): Promise<void> {
    const { generation, phase } = live.record;
    if (phase.name !== "waking") return;
    if (!phase.consumed) {
      await live.decide({ type: "wake_failed", generation, cause: RESTARTED_WAKING, blame: "nothing" });
      this.#parts.reaper.reap(live);
      return;
    }
    const isSame = unchanged(live);
    const { wakes } = this.#parts;
    if ((await this.#recovered(live)) === null)
      return wakes.failed(live, generation, errorOf(this.#whyGone(live)));
    if (!isSame()) return;
    await wakes.resume(live);
  }

  /**
   * Sets the count of recorded out-of-memory kills to the observed number, because the last server recorded these
   * kills.
   */
  async #countOomKills(live: LiveSandbox): Promise<void> {
    const { clock, driver, numbers } = this.#context;
    const limit = { ms: numbers.observeEveryMs, what: "observing" };
    // If the observation fails, kills are counted from zero, and an old kill may be reported again.
    const seen = await within(clock, limit, (signal) => driver.observe([live.id], signal)).catch(() => null);
    const observation = seen?.get(live.id);
    if (observation?.seen === "present") live.oom.reset(observation.oomKills);
  }

  #whyGone({ record: { instance } }: LiveSandbox): Cause {
    const rebooted = instance !== null && !this.#context.driver.isOfThisBoot(instance.identity);
    return rebooted
      ? { code: "host_rebooted", message: "The host was restarted, and with it every process ended." }
      : { code: "keeper_died", message: "The sandbox's processes ended while no server was running." };
  }

  /** Returns the instance that the driver finds, or null if it is absent. Rejects if that can't be determined. */
  async #recovered(live: LiveSandbox) {
    const { clock, driver, numbers, stopping } = this.#context;
    const { instance } = live.record;
    if (instance === null) return null;
    const limit = { ms: numbers.stopAttemptMs, what: "finding the instance again", signal: stopping };
    return within(clock, limit, (signal) => driver.recover(instance, signal));
  }
}

/** Returns a function that says whether the sandbox is still in the phase and the generation that it has now. */
function unchanged(live: LiveSandbox): () => boolean {
  const { phase, generation } = live.record;
  return () => live.record.phase === phase && live.record.generation === generation;
}

const RESTARTED_ASLEEP: Cause = {
  code: "server_restarted",
  message: "The server restarted before the memory was on disk.",
};

const RESTARTED_WAKING: Cause = {
  code: "server_restarted",
  message: "The server restarted while the sandbox was being woken.",
};
