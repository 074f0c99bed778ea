import { type Cause, causeOf, type ExecId, HoldfastError, isHoldfastError } from "@holdfast/contract";
import type { LinkOpener } from "../launch/link-opener.ts";
import type { Prover } from "../launch/prover.ts";
import type { Reaper } from "../launch/reaper.ts";
import { DeadlinePassed, raced, within } from "../lib/deadline.ts";
import { mb } from "../lib/format.ts";
import { Semaphore } from "../lib/semaphore.ts";
import type { EngineEvents } from "../live/engine-events.ts";
import type { LiveSandbox } from "../live/live-sandbox.ts";
import { areFilesGone } from "../model/cause-groups.ts";
import { type IdleFacts, isIdle } from "../model/idle.ts";
import { NO_HEALTH } from "../model/status.ts";
import type { EngineContext } from "../ports/context.ts";
import type { Checkpoint } from "../ports/index.ts";
import { requireCapability, standbySupport } from "../ports/index.ts";
import { toError, wrongState } from "./to-error.ts";

interface StandbyParts {
  events: EngineEvents;
  prover: Prover;
  reaper: Reaper;
  links: LinkOpener;
}

/**
 * Suspends sandboxes: waits until no call is in progress, freezes the sandbox, writes and verifies its memory, and only
 * then stops the instance. A caller that waits for the end of an exec, or follows its output, is a call in progress
 * too, because the exec would not end during standby. A standby on request waits a limited time for calls in progress
 * and is then refused. A call that arrives before the freeze cancels the suspension; a call that arrives later is held.
 * A failure at any step leaves the sandbox running, linked and proven, and is reported.
 */
export class Standby {
  readonly #context: EngineContext;
  readonly #parts: StandbyParts;
  readonly #turns: Semaphore;
  /**
   * For each sandbox that is being suspended, the condition for the suspension. If the condition becomes false before
   * the freeze, the suspension is cancelled. A sandbox without an entry must be idle.
   */
  readonly #reasons = new WeakMap<LiveSandbox, () => boolean>();

  constructor(context: EngineContext, parts: StandbyParts) {
    this.#context = context;
    this.#parts = parts;
    this.#turns = new Semaphore(context.numbers.standbysAtOnce, { limit: context.numbers.standbysWaiting });
    // A sandbox that is awake and proven never uses its checkpoint again, so the checkpoint is discarded.
    parts.events.woke.subscribe((live) => void this.discard(live));
  }

  /** Suspends the sandbox. Concurrent callers share one suspension. Resolves when no process of the sandbox is left. */
  async suspend(live: LiveSandbox, why: string): Promise<void> {
    const signal = AbortSignal.any([this.#context.stopping, live.deletedSignal]);
    while (live.isSaving)
      await live
        .until(() => !live.isSaving, signal)
        .catch((error: unknown) => {
          throw toStandbyError(live, error);
        });
    if (live.suspension === null) await this.#untilUnawaited(live, signal);
    // A standby on request needs no condition: it suspends the sandbox even if commands run in it.
    this.#reasons.set(live, () => true);
    return this.#shared(live, why);
  }

  /** Waits a limited time until no caller waits for an exec. Rejects with `sandbox_busy` if that time passes first. */
  async #untilUnawaited(live: LiveSandbox, signal: AbortSignal): Promise<void> {
    const { clock, numbers } = this.#context;
    const isOver = () => live.awaitedExecs.size === 0 || live.record.phase.name !== "running";
    if (isOver()) return;
    const limit = { ms: numbers.quietWaitMs, what: "waiting for the callers of execs", signal };
    await within(clock, limit, (inner) => live.until(isOver, inner)).catch((error: unknown) => {
      throw error instanceof DeadlinePassed ? busy(live, numbers.quietWaitMs) : toStandbyError(live, error);
    });
  }

  /**
   * Suspends the sandbox to free memory of the host. The suspension is cancelled if `stillWanted` returns false. If a
   * suspension is already in progress, joins it and does not check `stillWanted`.
   */
  async suspendIf(live: LiveSandbox, why: string, stillWanted: () => boolean): Promise<void> {
    if (live.suspension === null) {
      if (live.isSaving || !stillWanted()) throw toStandbyError(live, new SuspensionCancelled());
      this.#reasons.set(live, stillWanted);
    }
    return this.#shared(live, why);
  }

  #shared(live: LiveSandbox, why: string): Promise<void> {
    return live.suspendOnce((cancelled) =>
      this.#suspend(live, why, cancelled).finally(() => this.#reasons.delete(live)),
    );
  }

  async #suspend(live: LiveSandbox, why: string, cancelled: AbortSignal): Promise<void> {
    const { clock, numbers, stopping } = this.#context;
    const signal = AbortSignal.any([stopping, live.deletedSignal, cancelled]);
    try {
      await this.#turns.run(signal, () => this.#steps(live, why, signal));
    } catch (error) {
      // It is not a failure if the suspension was cancelled because the sandbox was used.
      const isOvertaken =
        error instanceof SuspensionCancelled ||
        isBusy(error) ||
        stopping.aborted ||
        live.deletedSignal.aborted;
      if (!isOvertaken) live.standbyBackoff.noteFailure(clock.now(), numbers);
      throw toStandbyError(live, error);
    }
    // Waits a limited time for the end of the instance. After that the reaper continues, and the caller gets
    // `suspending`.
    const isOver = () => live.record.lease.state === "none" || !isAsleep(live);
    const limit = { ms: numbers.stopAttemptMs, what: "ending the instance", signal: stopping };
    await within(clock, limit, (inner) => live.until(isOver, inner)).catch(() => undefined);
  }

  async #steps(live: LiveSandbox, why: string, signal: AbortSignal): Promise<void> {
    const { clock, driver, ids, numbers } = this.#context;
    const { kind } = standbySupport(driver);
    this.#checkUnused(live);
    refuseIfFilesAreGone(live);
    if (kind === "memory") await roomFor(this.#context, live, 0, signal);
    const checkpointId = ids.checkpoint();
    const deadline = clock.now() + numbers.standbyDeadlineMs;
    const begun = await live.decide({ type: "suspend", checkpointId, kind, deadline, why });
    if (begun === null) throw notSuspendable(live);
    let checkpoint: Checkpoint | null = null;
    try {
      // Calls that began before the decision were admitted, so check again that the sandbox is unused. Later calls are
      // held.
      this.#checkUnused(live);
      await untilQuiet(this.#context, live, signal);
      // A caller that began to wait for an exec just before the suspension began could not cancel the suspension.
      if (live.awaitedExecs.size > 0) throw busy(live, 0);
      const limit = { ms: numbers.standbyDeadlineMs, what: "writing the memory", signal };
      if (kind === "memory")
        checkpoint = await within(clock, limit, (inner) => this.#write(live, checkpointId, inner));
    } catch (error) {
      if (this.#context.stopping.aborted || live.deletedSignal.aborted) throw error;
      await this.abandonSuspension(live, causeOf(error));
      throw error;
    }
    const done = await live.decideSurely({ type: "suspended", checkpointId, checkpoint });
    if (done === null) throw notSuspendable(live);
    live.detachLink();
    live.standbyBackoff.noteSuccess();
    // The evidence about this instance does not apply to the next one.
    live.learn(NO_HEALTH);
    this.#parts.reaper.reap(live);
    await this.discard(live);
  }

  async #write(live: LiveSandbox, id: Checkpoint["id"], signal: AbortSignal): Promise<Checkpoint> {
    const { clock, driver, numbers } = this.#context;
    const { id: sandboxId, record } = live;
    await raced(Promise.all([live.discarding, live.healing]), signal);
    // From now on calls are held. They are served after the wake. If the suspension fails, this instance serves them at
    // once.
    live.commitSuspension();
    live.detachLink();
    const freezing = { ms: numbers.freezeMs, what: "freezing", signal };
    await within(clock, freezing, (inner) => requireCapability(driver, "freezer").freeze(sandboxId, inner));
    const writing = requireCapability(driver, "standby").checkpoint(
      { sandboxId, generation: record.generation, id },
      signal,
    );
    live.trackDriverWork(writing);
    const checkpoint = await raced(writing, signal);
    // Check that the sandbox is still frozen. If a process ran after the memory was written, the wake would reset the
    // process but not its changes to files.
    const seen = (await driver.observe([sandboxId], signal)).get(sandboxId);
    if (seen?.seen !== "present" || seen.state !== "frozen")
      throw new Error("the sandbox did not stay frozen while its memory was written");
    return checkpoint;
  }

  /**
   * Cancels the suspension if its reason no longer applies, because a call may have arrived while the suspension was
   * queued.
   */
  #checkUnused(live: LiveSandbox): void {
    const stillWanted =
      this.#reasons.get(live) ?? (() => isIdle({ ...idleFactsOf(live), now: this.#context.clock.now() }));
    if (!stillWanted()) throw new SuspensionCancelled();
  }

  /**
   * Returns a sandbox from `suspending` to service after a failure: thaws, links and proves it, and then records that
   * it runs. Never rejects.
   */
  async abandonSuspension(live: LiveSandbox, cause: Cause): Promise<void> {
    const { phase } = live.record;
    if (phase.name !== "suspending") return;
    await this.serveAgain(live);
    await live.decideSurely({ type: "suspend_failed", checkpointId: phase.checkpointId, cause });
    this.#context.log.warn(
      { sandbox: live.id, cause },
      phase.saving
        ? "a checkpoint failed; the sandbox keeps running"
        : "a standby failed; the sandbox keeps running",
    );
    await this.discard(live);
  }

  /**
   * Thaws the sandbox, opens its link and proves it. Stops after the thaw if the sandbox is no longer suspending, for
   * example because it was deleted meanwhile. Never rejects.
   */
  async serveAgain(live: LiveSandbox): Promise<void> {
    await this.thaw(live);
    if (live.record.phase.name !== "suspending") return;
    this.#parts.links.open(live);
    await this.#parts.prover.prove(live);
  }

  /** Thaws the sandbox after waiting a limited time for the driver to stop writing its memory. Never rejects. */
  async thaw(live: LiveSandbox): Promise<void> {
    const { clock, driver, numbers, log } = this.#context;
    await within(clock, { ms: numbers.freezeMs, what: "the driver" }, () => live.driverWork).catch(
      () => undefined,
    );
    await within(clock, { ms: numbers.freezeMs, what: "thawing" }, async (signal) =>
      driver.capabilities.freezer?.thaw(live.id, signal),
    ).catch((error: unknown) => log.error({ sandbox: live.id, cause: causeOf(error) }, "thawing failed"));
  }

  /**
   * Removes all standby checkpoints except the one in the record. Failures are logged; a later call removes the rest.
   */
  async discard(live: LiveSandbox): Promise<void> {
    const { clock, driver, numbers, log } = this.#context;
    const { phase } = live.record;
    // Nothing is removed from a failed sandbox, so that it can be inspected. Nothing is removed during a suspension
    // either, because the checkpoint that is being written is not in the record yet.
    if (phase.name === "failed" || phase.name === "suspending") return;
    const keep = "checkpoint" in phase ? (phase.checkpoint?.id ?? null) : null;
    const limit = { ms: numbers.stopAttemptMs, what: "discarding checkpoints" };
    await within(clock, limit, (signal) => {
      const discarding = (async () => driver.capabilities.standby?.discard(live.id, keep, signal))();
      live.trackDiscard(discarding);
      return discarding;
    }).catch((error: unknown) => {
      log.warn({ sandbox: live.id, cause: causeOf(error) }, "checkpoints could not be discarded");
    });
  }

  /** Suspends the sandboxes that have been unused for as long as their lifecycle settings say. */
  suspendIdle(allLive: Iterable<LiveSandbox>): void {
    const now = this.#context.clock.now();
    for (const live of allLive) {
      if (!isDue(live, now)) continue;
      const ms = live.record.spec.lifecycle.idleStandbyMs;
      this.#shared(live, `The sandbox was unused for ${ms} ms.`).catch((error: unknown) => {
        this.#context.log.info({ sandbox: live.id, cause: causeOf(error) }, "an idle sandbox stays awake");
      });
    }
  }
}

/**
 * Throws if files that the sandbox needs are missing on the host. A wake needs the same files, so a standby would end
 * the sandbox for good.
 */
function refuseIfFilesAreGone(live: LiveSandbox): void {
  const { cause } = live.judge();
  if (!areFilesGone(cause)) return;
  throw wrongState(live, `The sandbox can't be suspended: ${cause.message}`);
}

/** Whether the sandbox is idle and can be suspended now. */
const isDue = (live: LiveSandbox, now: number): boolean =>
  live.suspension === null &&
  !live.isSaving &&
  live.standbyBackoff.allows(now) &&
  isIdle({ ...idleFactsOf(live), now }) &&
  live.judge().status === "ready";

const idleFactsOf = ({ record, calls, awaitedExecs, isKeptAwake }: LiveSandbox): Omit<IdleFacts, "now"> => ({
  record,
  callsInProgress: calls + awaitedExecs.size,
  isKeptAwake,
});

const isAsleep = ({ record }: LiveSandbox): boolean => record.phase.name === "standby";

/**
 * Returns how many bytes may be written to disk: the free space minus the reserve and minus `promised`, the bytes that
 * are reserved for others. Throws if the sandbox's memory needs more.
 */
export async function roomFor(
  { clock, driver, numbers }: EngineContext,
  live: LiveSandbox,
  promised: number,
  signal: AbortSignal,
): Promise<number> {
  const limit = { ms: numbers.keeperCallMs, what: "measuring memory and disk", signal };
  const [bytes, { diskFreeBytes }] = await within(clock, limit, (inner) =>
    Promise.all([driver.capabilities.standby?.memoryBytes(live.id, inner) ?? 0, driver.capacity(inner)]),
  );
  const room = diskFreeBytes - numbers.diskReserveBytes - promised;
  if (room >= bytes) return room;
  const message = `The sandbox's memory has ${mb(bytes)} MB, and the disk has ${mb(diskFreeBytes)} MB free with ${mb(numbers.diskReserveBytes)} MB in reserve.`;
  throw new HoldfastError("disk_full", { sandboxId: live.id, message });
}

/** Resolves when no call to the keeper is in progress. Rejects with `sandbox_busy` if that takes too long. */
export async function untilQuiet(
  { clock, numbers }: EngineContext,
  live: LiveSandbox,
  signal: AbortSignal,
): Promise<void> {
  const limit = { ms: numbers.quietWaitMs, what: "waiting for the calls in progress", signal };
  await within(clock, limit, (inner) => live.until(() => isQuiet(live), inner)).catch((error: unknown) => {
    signal.throwIfAborted();
    throw error instanceof DeadlinePassed ? busy(live, numbers.quietWaitMs) : error;
  });
}

/**
 * Creates the error with which a standby or a checkpoint is refused because of calls in progress. If a caller waits for
 * an exec, the error names the exec.
 */
function busy(live: LiveSandbox, waitedMs: number): HoldfastError {
  const { id: sandboxId, calls, awaitedExecs } = live;
  const [execId] = awaitedExecs;
  const what =
    execId === undefined
      ? `${calls} calls on the sandbox are in progress`
      : `A caller waits for the end of exec ${execId}`;
  const since = waitedMs === 0 ? "" : `, and did so for ${waitedMs} ms`;
  const about = execId === undefined ? {} : { execId };
  return new HoldfastError("sandbox_busy", { sandboxId, ...about, message: `${what}${since}.` });
}

const isBusy = (error: unknown): boolean => isHoldfastError(error) && error.code === "sandbox_busy";

/**
 * Registers that a caller waits for the end of an exec; the returned function unregisters the caller. A waiting caller
 * is treated as a call in progress: it cancels a suspension that has not frozen the sandbox yet, and prevents a later
 * one from starting.
 */
export function awaitEnd(live: LiveSandbox, id: ExecId): () => void {
  const leave = live.awaitExec(id);
  live.cancelSuspension(new SuspensionCancelled());
  return leave;
}

/** Runs `wait`, during which a caller waits for the end of an exec. */
export function whileAwaited<Result>(
  live: LiveSandbox,
  id: ExecId,
  wait: () => Promise<Result>,
): Promise<Result> {
  const leave = awaitEnd(live, id);
  return wait().finally(leave);
}

/** Whether no call to the keeper is in progress. A start that the keeper has not confirmed is a call in progress. */
export const isQuiet = (live: LiveSandbox): boolean =>
  live.calls === 0 && [...live.openExecs].every(({ isQueued, isAcknowledged }) => isQueued || isAcknowledged);

function toStandbyError(live: LiveSandbox, error: unknown): unknown {
  if (error instanceof SuspensionCancelled && live.refusal() === null)
    return new HoldfastError("standby_cancelled", { sandboxId: live.id });
  return toError(live, { code: "standby_failed", what: "The sandbox could not be suspended" }, error);
}

/** Thrown when a call cancels a suspension. */
export class SuspensionCancelled extends Error {
  constructor() {
    super("a call came before the sandbox was frozen");
    this.name = "SuspensionCancelled";
  }
}

const notSuspendable = (live: LiveSandbox): HoldfastError =>
  wrongState(live, `A sandbox that is ${live.judge().status} can't be suspended.`);
