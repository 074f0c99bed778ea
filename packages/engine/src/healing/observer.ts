import { causeOf } from "@holdfast/contract";
import { within } from "../lib/deadline.ts";
import type { InstanceLoss } from "../lifecycle/instance-loss.ts";
import type { EngineEvents } from "../live/engine-events.ts";
import type { LiveSandbox } from "../live/live-sandbox.ts";
import type { SandboxRegistry } from "../live/sandbox-registry.ts";
import { hasInstance, isKeptFailed } from "../model/sandbox-facts.ts";
import type { EngineContext } from "../ports/context.ts";
import type { Observation } from "../ports/index.ts";
import { sameIdentity } from "../ports/index.ts";
import type { OomAttribution } from "./oom-attribution.ts";

interface ObserverParts {
  events: EngineEvents;
  registry: SandboxRegistry;
  loss: InstanceLoss;
  oom: OomAttribution;
  drives: { observe(): Promise<void> };
  meter: {
    /** Samples the usage of the given sandboxes in the same pass as their observation. Never rejects. */
    take(allLive: readonly LiveSandbox[]): Promise<void>;
  };
  clockWatch: {
    /** Called after each sleep, with the requested time and the time that passed on the clock. */
    slept(askedMs: number, byClockMs: number): void;
  };
}

/**
 * Observes all running instances, idle ones too, in one pass every few seconds, without touching the processes inside.
 * The pass detects a killed keeper, an unmounted root or drive, and a frozen or stopped instance; the status of a
 * sandbox is computed from its observations. A lost link triggers an early observation, which only saves time.
 */
export class Observer {
  readonly #context: EngineContext;
  readonly #parts: ObserverParts;
  lastPassAt: number | null = null;

  constructor(context: EngineContext, parts: ObserverParts) {
    this.#context = context;
    this.#parts = parts;
    // A lost link is a hint that the sandbox has a problem, so it is observed at once instead of in the next pass.
    parts.events.linkDown.subscribe((live) => void this.observe([live]).catch(() => undefined));
  }

  async run(): Promise<void> {
    const { clock, numbers, stopping, log } = this.#context;
    while (!stopping.aborted) {
      const sleptAt = clock.now();
      await clock.sleep(numbers.observeEveryMs, stopping).catch(() => undefined);
      if (stopping.aborted) return;
      this.#parts.clockWatch.slept(numbers.observeEveryMs, clock.now() - sleptAt);
      const running = [...this.#parts.registry.allLive()].filter((live) => hasInstance(live.record));
      const { drives, meter } = this.#parts;
      const passes = [
        this.observe(running),
        drives.observe(),
        meter.take(running),
        this.checkFiles([...this.#parts.registry.allLive()]),
      ];
      await Promise.all(passes).catch((error: unknown) => {
        log.error({ cause: causeOf(error) }, "an observation pass failed");
      });
      this.lastPassAt = clock.now();
    }
  }

  /** Observes the given sandboxes once. A sandbox that can't be observed gets an `unknown` observation. */
  async observe(allLive: readonly LiveSandbox[]): Promise<void> {
    if (allLive.length === 0) return;
    const before = new Map(allLive.map((live) => [live, live.record]));
    const seen = await this.#ask(allLive);
    const missing = allLive.filter((live) => seen.get(live.id)?.seen === "absent");
    // An instance that seems absent is observed a second time, because an absent instance is treated as lost.
    const again = missing.length === 0 ? seen : await this.#ask(missing);
    const taken: Promise<void>[] = [];
    for (const [live, { generation, phase }] of before) {
      // If the generation or the phase has changed since the observation began, the observation is dropped: it may, for
      // example, show a freeze that belonged to the earlier phase.
      if (live.record.generation !== generation || live.record.phase !== phase) continue;
      if (!hasInstance(live.record)) continue;
      const observation = (missing.includes(live) ? again : seen).get(live.id);
      if (observation === undefined) continue;
      taken.push(this.#take(live, generation, observation));
    }
    // All observations are applied before the failure of one of them is reported.
    const failed = (await Promise.allSettled(taken)).find(({ status }) => status === "rejected");
    if (failed?.status === "rejected") throw failed.reason;
  }

  /**
   * Checks whether the files of failed sandboxes still exist, so that the API does not report files that a person has
   * removed. If the check fails, the last result stays.
   */
  async checkFiles(allLive: readonly LiveSandbox[]): Promise<void> {
    const { clock, driver, numbers, stopping, log } = this.#context;
    const { offlineFiles } = driver.capabilities;
    const failed = allLive.filter(({ record }) => isKeptFailed(record));
    if (offlineFiles === null || failed.length === 0) return;
    const generations = new Map(failed.map((live) => [live, live.record.generation]));
    const limit = { ms: numbers.observeEveryMs * 2, what: "checking files", signal: stopping };
    const ids = failed.map(({ id }) => id);
    const found = await within(clock, limit, (signal) => offlineFiles.missing(ids, signal)).catch(
      (error: unknown) => {
        log.warn({ cause: causeOf(error) }, "failed to check the files of failed sandboxes");
        return new Map<string, string | null>();
      },
    );
    for (const [live, generation] of generations) {
      const missing = found.get(live.id);
      const known = live.health.filesCheck;
      if (missing === undefined || (known?.generation === generation && known.missing === missing)) continue;
      live.learn({ filesCheck: { generation, missing } });
    }
  }

  async #ask(allLive: readonly LiveSandbox[]): Promise<Map<string, Observation>> {
    const { clock, driver, numbers } = this.#context;
    const ids = allLive.map((live) => live.id);
    const limit = { ms: numbers.observeEveryMs * 2, what: "observing", signal: this.#context.stopping };
    return within(clock, limit, (signal) => driver.observe(ids, signal)).catch((error: unknown) => {
      const unknown: Observation = { seen: "unknown", at: clock.now(), why: causeOf(error).message };
      return new Map(ids.map((id) => [id, unknown]));
    });
  }

  async #take(live: LiveSandbox, generation: number, observation: Observation): Promise<void> {
    live.learn({ observation: markReplaced(live, observation) });
    if (observation.seen === "present" && observation.oomKills > live.oom.kills)
      await this.#parts.oom.note(live, observation.oomKills);
    if (observation.seen === "absent") {
      const message = "The keeper (PID 1) is gone, and with it every process of the sandbox.";
      await this.#parts.loss.died(live, generation, { code: "keeper_died", message });
    }
  }
}

/** Adds a problem if PID 1 is not the one that was launched. */
function markReplaced(live: LiveSandbox, observation: Observation): Observation {
  const { instance } = live.record;
  if (
    observation.seen !== "present" ||
    instance === null ||
    sameIdentity(observation.identity, instance.identity)
  )
    return observation;
  const problem = {
    code: "instance_replaced",
    message: "The sandbox's PID 1 is not the one that was launched.",
  };
  return { ...observation, problems: [problem, ...observation.problems] };
}
