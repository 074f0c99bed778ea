import { type Cause, causeOf, HoldfastError, type Numbers } from "@holdfast/contract";
import { DeadlinePassed, raced, within } from "../lib/deadline.ts";
import { Semaphore } from "../lib/semaphore.ts";
import type { LiveSandbox } from "../live/live-sandbox.ts";
import { wantedMounts } from "../model/mount-machine.ts";
import { forkSource, hasServed } from "../model/sandbox-facts.ts";
import type { EngineContext } from "../ports/context.ts";
import type { SandboxRecord } from "../ports/records.ts";
import type { Admission } from "./admission.ts";
import { bringIntoService, type ServiceParts } from "./bring-into-service.ts";
import { type EntryTime, withinEntryTime } from "./prove-entry.ts";
import type { Reaper } from "./reaper.ts";

interface LauncherParts extends ServiceParts {
  admission: Admission;
  reaper: Reaper;
}

/** The outcome of a launch. `stopped`: the server stopped before the end, and the next server continues. */
export type LaunchOutcome =
  | { outcome: "proven" }
  | { outcome: "failed"; cause: Cause }
  | { outcome: "stopped" };

/**
 * Takes a sandbox from the queue to its first proof: it waits in the queue, stores the lease, launches the instance,
 * opens the link and proves the sandbox. A failure at any step is recorded as `launch_failed`. The lease then requires
 * a stop, which the reaper carries out, and a sandbox that has never served releases its name. A few launches run at
 * once; the rest wait in a queue of limited length, in which the owners are served in turn.
 */
export class Launcher {
  readonly #context: EngineContext;
  readonly #parts: LauncherParts;
  readonly #slots: Semaphore;

  constructor(context: EngineContext, parts: LauncherParts) {
    this.#context = context;
    this.#parts = parts;
    // The semaphore's queue has no limit, because a sandbox that is already stored is never refused. `admit` limits the
    // number of new sandboxes in the queue.
    this.#slots = new Semaphore(context.numbers.launchesAtOnce, { limit: Number.POSITIVE_INFINITY });
  }

  get waiting(): number {
    return this.#slots.waiting;
  }

  /** Throws if a launch would be rejected immediately: the queue is full, or launches are suspended. */
  admit(): void {
    if (this.#slots.waiting >= this.#context.numbers.launchesWaiting)
      throw new HoldfastError("capacity", { message: "The launch queue is full." });
    this.#parts.admission.checkLaunches();
  }

  /** Runs the launch to its end, including the wait in the queue. Never rejects. */
  launch(live: LiveSandbox): Promise<LaunchOutcome> {
    const signal = AbortSignal.any([live.deletedSignal, this.#context.stopping]);
    return this.#settle(live, () => this.#queued(live, signal, () => this.#attempt(live, signal)));
  }

  /**
   * Runs the launch and reports the outcome to the circuit breaker. An aborted launch is reported without a cause,
   * because it says nothing about the host.
   */
  async #attempt(live: LiveSandbox, signal: AbortSignal): Promise<void> {
    const { clock, numbers } = this.#context;
    const { admission } = this.#parts;
    const limit = { ms: launchDeadlineMs(live.record, numbers), what: "the launch", signal };
    await this.#waitForPermission(live, signal);
    try {
      await within(clock, limit, (inner) => this.#steps(live, inner));
    } catch (error) {
      // A fork may also fail because of its checkpoint's memory and files, so its failure says nothing about the host.
      const isInconclusive =
        live.deletedSignal.aborted || this.#context.stopping.aborted || forkSource(live.record) !== null;
      admission.launchEnded(isInconclusive ? null : causeOf(asHoldfastError(error)));
      throw error;
    }
    admission.launched();
  }

  /** Rejects a new sandbox while launches are suspended. A sandbox that has served before waits instead of failing. */
  async #waitForPermission(live: LiveSandbox, signal: AbortSignal): Promise<void> {
    while (!this.#parts.admission.mayLaunch()) {
      if (!hasServed(live.record)) {
        // Throws with the cause of the last failure. If launches were resumed a moment ago, it does not throw, and the
        // next line does.
        this.#parts.admission.checkLaunches();
        throw new HoldfastError("launches_suspended");
      }
      await this.#context.clock.sleep(ASK_AGAIN_MS, signal);
    }
  }

  /** Brings an instance into service that an earlier server launched and did not prove. */
  async prove(live: LiveSandbox): Promise<void> {
    await this.#settle(live, () => this.#prove(live, live.deletedSignal));
  }

  async #settle(live: LiveSandbox, work: () => Promise<void>): Promise<LaunchOutcome> {
    const { log, stopping } = this.#context;
    try {
      await work();
      return { outcome: "proven" };
    } catch (error) {
      if (stopping.aborted) return { outcome: "stopped" };
      const cause = causeOf(asHoldfastError(error));
      log.warn({ sandbox: live.id, cause }, "the launch failed");
      await live.decideSurely({ type: "launch_failed", cause });
      this.#parts.reaper.reap(live);
      return { outcome: "failed", cause };
    }
  }

  async #steps(live: LiveSandbox, signal: AbortSignal): Promise<void> {
    const { clock, driver, numbers } = this.#context;
    const deadline = clock.now() + launchDeadlineMs(live.record, numbers);
    const begun = await live.decide({ type: "launch", deadline });
    if (begun === null) throw new Error("the sandbox was deleted or launched meanwhile");
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
      onStep: (step: string) => live.progress(step),
    };
    live.progress("launching");
    signal.throwIfAborted();
    const launch = driver.launch(order, signal);
    live.trackDriverWork(launch);
    const instance = await raced(launch, signal);
    const { pid } = driver.describe(instance.identity);
    const launched = await live.decideUntil({ type: "launched", generation, instance, pid }, signal);
    if (launched === null) throw new Error("the launch was overtaken");
    await this.#prove(live, signal);
  }

  /**
   * Proves a launched instance. The proof's deadline is the same for every launch, although a launch that copies a
   * checkpoint has a longer deadline.
   */
  async #prove(live: LiveSandbox, launch: AbortSignal): Promise<void> {
    const { numbers } = this.#context;
    const limit = { ms: numbers.createDeadlineMs, what: "the proof", signal: launch };
    await withinEntryTime(this.#context, limit, (time) => this.#enterService(live, time));
  }

  async #enterService(live: LiveSandbox, time: EntryTime): Promise<void> {
    const { events } = this.#parts;
    const mayLackMounts = hasServed(live.record);
    const beforeRecord = () => events.proven.run(live);
    const entry = { what: "launch", mayLackMounts, beforeRecord } as const;
    await bringIntoService(this.#context, this.#parts, live, entry, time);
    events.inService.emit(live);
  }

  /** Runs the work once a launch slot is free. A launch that is aborted while it waits leaves the queue. */
  async #queued(live: LiveSandbox, signal: AbortSignal, work: () => Promise<void>): Promise<void> {
    const leave = this.#slots.tryEnter() ?? (await this.#waitForSlot(live, signal));
    try {
      signal.throwIfAborted();
      await work();
    } finally {
      leave();
    }
  }

  async #waitForSlot(live: LiveSandbox, signal: AbortSignal): Promise<() => void> {
    const { clock, numbers } = this.#context;
    live.progress("waiting");
    const deadline = clock.deadline(numbers.launchQueueMs, "waiting for a turn to be launched");
    try {
      // `enter` itself ends the wait at the deadline. `within` could reject at the moment when a slot is given, and the
      // slot would be lost.
      return await this.#slots.enter(AbortSignal.any([signal, deadline.signal]), live.record.owner);
    } finally {
      deadline.clear();
    }
  }
}

/**
 * Returns the deadline of a launch. A fork has a longer one, because copying its checkpoint may take as long as writing
 * it did.
 */
const launchDeadlineMs = (record: SandboxRecord, { createDeadlineMs, standbyDeadlineMs }: Numbers): number =>
  createDeadlineMs + (forkSource(record) === null ? 0 : standbyDeadlineMs);

/**
 * Waits for the outcome of a launch. The wait is longer than the launch's own deadlines, so that the caller gets the
 * outcome of the launch and not a timeout of the wait.
 */
export async function withinLaunch<Result>(
  { clock, numbers }: EngineContext,
  live: LiveSandbox,
  signal: AbortSignal,
  work: (signal: AbortSignal) => Promise<Result>,
): Promise<Result> {
  const ms = numbers.launchQueueMs + launchDeadlineMs(live.record, numbers) + OUTCOME_MS;
  return within(clock, { ms, what: "waiting for the sandbox", signal }, work).catch((error: unknown) => {
    signal.throwIfAborted();
    throw new HoldfastError("deadline", { sandboxId: live.id, message: causeOf(error).message });
  });
}

const ASK_AGAIN_MS = 1_000;
const OUTCOME_MS = 5_000;

function asHoldfastError(error: unknown): unknown {
  if (error instanceof DeadlinePassed) return new HoldfastError("deadline", { message: error.message });
  return error;
}
