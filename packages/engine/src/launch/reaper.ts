import { causeOf } from "@holdfast/contract";
import { within } from "../lib/deadline.ts";
import type { EngineEvents } from "../live/engine-events.ts";
import type { LiveSandbox } from "../live/live-sandbox.ts";
import { destroysFiles } from "../model/sandbox-facts.ts";
import { stopDueAt } from "../model/stop-backoff.ts";
import type { EngineContext } from "../ports/context.ts";

/**
 * Carries out the stop that a lease requires: stops the instance, observes its absence and removes its files, unless
 * the files are kept. The attempt is stored before the first signal is sent, and the lease is released only when
 * absence was observed. A crash at any point therefore leaves a stop that the next server finds. An `unknown`
 * observation fails the attempt; it is never treated as absence.
 */
export class Reaper {
  readonly #context: EngineContext;
  readonly #events: EngineEvents;
  readonly #reaping = new Set<LiveSandbox>();

  constructor(context: EngineContext, events: EngineEvents) {
    this.#context = context;
    this.#events = events;
  }

  /**
   * Stops the instance, with as many attempts as needed, until the lease requires no stop. Does nothing if a stop is
   * already in progress.
   */
  reap(live: LiveSandbox, options: { graceMs: number } = { graceMs: 0 }): void {
    if (this.#reaping.has(live)) return;
    this.#reaping.add(live);
    void this.#reap(live, options.graceMs);
  }

  async #reap(live: LiveSandbox, graceMs: number): Promise<void> {
    const { clock, numbers, stopping, log } = this.#context;
    while (!stopping.aborted) {
      try {
        await this.#closeOldAttempt(live);
        const due = stopDueAt(live.record.lease, clock.now(), numbers);
        if (due === null) {
          // There is no await between the last check of the lease and this line. A stop that is requested afterwards
          // therefore starts a new loop.
          this.#reaping.delete(live);
          return;
        }
        await this.#waitFor(live, due);
        await this.#attempt(live, graceMs);
      } catch (error) {
        if (stopping.aborted) return;
        // The store failed. The stored lease still requires the stop, so the loop tries again.
        log.error({ sandbox: live.id, cause: causeOf(error) }, "a stop attempt could not be recorded");
        await clock.sleep(1_000, stopping).catch(() => undefined);
      }
    }
  }

  /**
   * Records the failure of a stored attempt that is no longer in progress, because its server ended or its outcome
   * could not be stored.
   */
  async #closeOldAttempt(live: LiveSandbox): Promise<void> {
    const { lease } = live.record;
    if (lease.state !== "stopping") return;
    await live.decide({
      type: "stop_failed",
      attemptId: lease.attemptId,
      error: "the attempt was aborted",
    });
  }

  /** Waits until the next attempt is due or the lease changes. A delete changes the lease and thus ends a back-off. */
  async #waitFor(live: LiveSandbox, due: number): Promise<void> {
    const { clock, stopping } = this.#context;
    const ms = due - clock.now();
    if (ms <= 0) return;
    const lease = live.record.lease;
    const changed = new AbortController();
    const signal = AbortSignal.any([stopping, changed.signal]);
    await Promise.race([
      clock.sleep(ms, signal),
      live.until(() => live.record.lease !== lease, signal),
    ]).finally(() => changed.abort());
  }

  async #attempt(live: LiveSandbox, graceMs: number): Promise<void> {
    const { clock, ids, numbers, log, stopping } = this.#context;
    const attemptId = ids.attempt();
    const deadline = clock.now() + numbers.stopAttemptMs;
    if ((await live.decide({ type: "stop_attempt", attemptId, deadline })) === null) return;
    const limit = { ms: numbers.stopAttemptMs, what: "stopping the instance", signal: stopping };
    try {
      await within(clock, limit, (signal) => this.#stopAndClean(live, graceMs, signal));
    } catch (error) {
      if (stopping.aborted) return;
      const { message } = causeOf(error);
      log.warn({ sandbox: live.id, cause: causeOf(error) }, "a stop attempt failed");
      await live.decide({ type: "stop_failed", attemptId, error: message });
      return;
    }
    await live.decide({ type: "absence_observed", attemptId });
  }

  async #stopAndClean(live: LiveSandbox, graceMs: number, signal: AbortSignal): Promise<void> {
    const { driver, journals, log } = this.#context;
    live.closeLink();
    await Promise.all([live.driverWork, live.healing]);
    const seen = await driver.stop(live.id, { graceMs }, signal);
    if (seen.seen === "unknown") throw new Error(`absence could not be observed: ${seen.why}`);
    if (seen.seen === "present")
      throw new Error(`process ${driver.describe(seen.identity).pid} is still there`);
    // The listeners must run before the files are removed, because the outcomes of open execs are read from their
    // journals.
    await this.#events.instanceAbsent.run(live);
    if (!destroysFiles(live.record)) return;
    // A sandbox that is launched again writes new journals, so the old ones are not archived.
    if (live.record.phase.name === "queued") return driver.destroy(live.id, signal);
    // Journals are archived so that execs can be read after their sandbox is deleted. If archiving fails, the sandbox
    // is destroyed nevertheless.
    await journals.archive(live.id, signal).catch((error: unknown) => {
      log.error({ sandbox: live.id, cause: causeOf(error) }, "journals could not be archived");
    });
    await driver.destroy(live.id, signal);
  }
}
