import { type Cause, causeOf } from "@holdfast/contract";
import { within } from "../lib/deadline.ts";
import type { LiveSandbox } from "../live/live-sandbox.ts";
import type { EngineContext } from "../ports/context.ts";

/** An exec that is killed within this time after an out-of-memory kill is regarded as its victim. */
const OOM_RECENT_MS = 2_000;
const OBSERVE_MS = 2_000;

/** Records the kernel's out-of-memory kills, and decides whether one of them explains why an exec was killed. */
export class OomAttribution {
  readonly #context: EngineContext;

  constructor(context: EngineContext) {
    this.#context = context;
  }

  /** Explains why a command of the sandbox was killed. Returns null if the kernel's memory limit is not the reason. */
  async whyKilled(live: LiveSandbox): Promise<Cause | null> {
    const { clock, driver } = this.#context;
    const limit = { ms: OBSERVE_MS, what: "looking for out-of-memory kills" };
    const seen = await within(clock, limit, (signal) => driver.observe([live.id], signal));
    const observation = seen.get(live.id);
    if (observation?.seen === "present") await this.note(live, observation.oomKills);
    if (clock.now() - live.oom.seenAt > OOM_RECENT_MS) return null;
    const { memoryMb } = live.record.spec.resources;
    return {
      code: "oom_killed",
      message: `The kernel killed it: the sandbox's memory limit of ${memoryMb} MB was reached.`,
    };
  }

  /** Records an event with the number of kills whenever the kernel's counter has risen. */
  async note(live: LiveSandbox, oomKills: number): Promise<void> {
    const { clock, store, log } = this.#context;
    const before = live.oom.kills;
    const kills = oomKills - before;
    if (kills <= 0) return;
    live.oom.raise(oomKills, clock.now());
    const { id: sandboxId, generation } = live.record;
    const limit = live.record.spec.resources.memoryMb;
    const message = `The kernel killed ${kills} process${kills === 1 ? "" : "es"} of the sandbox: its memory limit of ${limit} MB was reached.`;
    log.warn({ sandbox: sandboxId, generation, kills }, message);
    const event = {
      at: clock.now(),
      type: "sandbox.oom",
      sandboxId,
      generation,
      message,
      data: { kills, memoryMb: limit },
    } as const;
    // `recordEvent` would only log a failure. Here a failure must also undo the count, so that the next observation
    // reports the kills again.
    await store.commit({ changes: [], events: [event] }).catch((error: unknown) => {
      const cause = causeOf(error);
      log.error(
        { sandbox: sandboxId, cause },
        "failed to store a sandbox.oom event; retrying at the next observation",
      );
      live.oom.undo(before);
    });
  }
}
