import { causeOf, HoldfastError } from "@holdfast/contract";
import { bringIntoService, type ServiceParts } from "../launch/bring-into-service.ts";
import type { Launcher } from "../launch/launcher.ts";
import { type EntryTime, throwIfAbsent, withinEntryTime } from "../launch/prove-entry.ts";
import type { Reaper } from "../launch/reaper.ts";
import { raced, within } from "../lib/deadline.ts";
import { mb } from "../lib/format.ts";
import { Semaphore } from "../lib/semaphore.ts";
import type { LiveSandbox } from "../live/live-sandbox.ts";
import { errorOf } from "../model/keeper-errors.ts";
import { wantedMounts } from "../model/mount-machine.ts";
import type { EngineContext } from "../ports/context.ts";
import { CheckpointUnusable, requireCapability } from "../ports/index.ts";
import type { InstanceLoss } from "./instance-loss.ts";
import { SuspensionCancelled } from "./suspend.ts";

interface WakeParts extends ServiceParts {
  reaper: Reaper;
  launcher: Launcher;
  loss: InstanceLoss;
}

/**
 * Wakes sandboxes from standby; concurrent callers share one wake. A checkpoint becomes a running instance at most
 * once: the restored instance stays frozen until the checkpoint is recorded as spent, and then the checkpoint is never
 * used again. A restore that fails before that may be repeated, once nothing of the failed instance remains.
 */
export class Wakes {
  readonly #context: EngineContext;
  readonly #parts: WakeParts;
  readonly #turns: Semaphore;

  constructor(context: EngineContext, parts: WakeParts) {
    this.#context = context;
    this.#parts = parts;
    this.#turns = new Semaphore(context.numbers.wakesAtOnce, { limit: context.numbers.wakesWaiting });
  }

  /** Holds a call until the sandbox is awake; wakes it if it is in standby. The number of held calls is limited. */
  async untilAwake(live: LiveSandbox, signal: AbortSignal): Promise<void> {
    if (!isSleeping(live)) return;
    const { clock, numbers } = this.#context;
    if (live.waitingForWake >= numbers.heldPerSandbox)
      throw new HoldfastError("too_many_held", { sandboxId: live.id });
    const leave = live.waitForWake();
    const limit = { ms: numbers.wakeDeadlineMs, what: "the wake", signal };
    let lasting = signal;
    try {
      await within(clock, limit, (inner) => {
        lasting = inner;
        return this.#wakeUntilAwake(live, inner);
      });
    } catch (error) {
      if (error instanceof HoldfastError) throw error;
      signal.throwIfAborted();
      throw live.refusal() ?? wakeError(live, error, { isLate: lasting.aborted });
    } finally {
      leave();
    }
  }

  /** Cancels a suspension in progress if that is still possible. Otherwise waits for its end and wakes the sandbox. */
  async #wakeUntilAwake(live: LiveSandbox, signal: AbortSignal): Promise<void> {
    while (isSleeping(live)) {
      signal.throwIfAborted();
      live.cancelSuspension(new SuspensionCancelled());
      const { phase } = live.record;
      if (phase.name === "standby") await raced(this.wake(live), signal);
      else await live.until(() => live.record.phase.name !== phase.name, signal);
    }
  }

  /** Wakes the sandbox. Concurrent callers share one wake. Rejects if the sandbox stays asleep. */
  wake(live: LiveSandbox): Promise<void> {
    return live.wakeOnce(() => this.#wake(live));
  }

  async #wake(live: LiveSandbox): Promise<void> {
    const signal = AbortSignal.any([live.deletedSignal, this.#context.stopping]);
    while (live.record.phase.name === "standby") {
      await this.#untilAbsent(live, signal);
      await this.#turns.run(signal, () => this.#try(live, signal));
    }
  }

  /** Resolves when nothing of the last instance remains, according to both the record and an observation. */
  async #untilAbsent(live: LiveSandbox, signal: AbortSignal): Promise<void> {
    const { clock, driver, numbers } = this.#context;
    for (let tries = 1; tries <= numbers.callTriesMax; tries += 1) {
      this.#parts.reaper.reap(live);
      const isFree = () => live.record.lease.state === "none" || live.record.phase.name !== "standby";
      await live.until(isFree, signal);
      if (live.record.phase.name !== "standby") return;
      const limit = { ms: numbers.observeEveryMs * 2, what: "observing", signal };
      const seen = await within(clock, limit, (inner) => driver.observe([live.id], inner));
      const observation = seen.get(live.id);
      if (observation?.seen === "absent") return;
      if (observation?.seen !== "present")
        throw new Error(`the sandbox could not be observed: ${observation?.why ?? "it was not looked at"}`);
      await live.decide({ type: "lingered" });
    }
    throw new Error(`the last instance was still there after ${numbers.callTriesMax} stops`);
  }

  async #try(live: LiveSandbox, signal: AbortSignal): Promise<void> {
    const { clock, numbers } = this.#context;
    if (live.record.phase.name !== "standby") return;
    await this.#requireFiles(live, signal);
    await this.#admit(live, signal);
    const ms = numbers.wakeDeadlineMs;
    const begun = await live.decide({ type: "wake", deadline: clock.now() + ms });
    if (begun === null) return;
    if (begun.record.phase.name === "queued") {
      await this.#parts.launcher.launch(live);
      return;
    }
    const limit = { ms, what: "the wake", signal };
    const { generation } = begun.record;
    try {
      await withinEntryTime(this.#context, limit, (time) => this.#restore(live, generation, time));
    } catch (error) {
      await this.failed(live, generation, error);
    }
  }

  /**
   * Throws if files of the sandbox are missing on the host. A wake would fail and could lose the memory, while the
   * files may be put back.
   */
  async #requireFiles(live: LiveSandbox, signal: AbortSignal): Promise<void> {
    const { clock, driver, numbers } = this.#context;
    const { offlineFiles } = driver.capabilities;
    if (offlineFiles === null) return;
    const limit = { ms: numbers.keeperCallMs, what: "looking for the files", signal };
    const found = await within(clock, limit, (inner) => offlineFiles.missing([live.id], inner));
    const missing = found.get(live.id) ?? null;
    if (missing === null) return;
    const cause = errorOf({ code: "files_gone", message: missing });
    const message = `The sandbox could not be woken: ${missing}. It is woken once its files are back in their place.`;
    throw new HoldfastError("wake_failed", { sandboxId: live.id, message, cause });
  }

  /**
   * Throws if the host has too little memory to restore the checkpoint. Without a checkpoint, throws if a launch would
   * be refused.
   */
  async #admit(live: LiveSandbox, signal: AbortSignal): Promise<void> {
    const { clock, driver, numbers } = this.#context;
    const { phase } = live.record;
    if (phase.name !== "standby") return;
    if (phase.checkpoint === null) return this.#parts.launcher.admit();
    const limit = { ms: numbers.keeperCallMs, what: "measuring the host", signal };
    const { memoryFreeBytes } = await within(clock, limit, (inner) => driver.capacity(inner));
    if (memoryFreeBytes - phase.checkpoint.sizeBytes >= numbers.memoryReserveBytes) return;
    const message = `The host has ${mb(memoryFreeBytes)} MB of memory free; the sandbox's checkpoint has ${mb(phase.checkpoint.sizeBytes)} MB.`;
    throw new HoldfastError("low_memory", { sandboxId: live.id, message });
  }

  async #restore(live: LiveSandbox, generation: number, time: EntryTime): Promise<void> {
    const { driver } = this.#context;
    const { signal } = time;
    const { id: sandboxId, record } = live;
    const { phase, name, spec } = record;
    if (phase.name !== "waking") return;
    const { checkpoint } = phase;
    const { image, resources } = spec;
    const onStep = (step: string) => live.progress(step);
    const mounts = wantedMounts(record);
    const order = { sandboxId, name, generation, checkpoint, image, resources, mounts, onStep };
    live.progress("waking");
    const restore = requireCapability(driver, "standby").restore(order, signal);
    live.trackDriverWork(restore);
    const instance = await raced(restore, signal);
    const spent = await live.decideUntil({ type: "restored", generation, instance }, signal);
    if (spent === null) throw new Error("the wake was overtaken");
    await this.#serve(live, time);
  }

  /** Continues a wake of the last server: brings its restored instance into service. */
  async resume(live: LiveSandbox): Promise<void> {
    const { numbers, stopping } = this.#context;
    const limit = { ms: numbers.wakeDeadlineMs, what: "the wake", signal: stopping };
    const { generation } = live.record;
    await withinEntryTime(this.#context, limit, (time) => this.#serve(live, time)).catch((error: unknown) =>
      this.failed(live, generation, error),
    );
  }

  /** Brings a restored instance into service, after its checkpoint was recorded as spent. */
  async #serve(live: LiveSandbox, time: EntryTime): Promise<void> {
    const { events } = this.#parts;
    const thaw = async () => {
      await this.#thaw(live, time.signal);
      live.detachLink();
    };
    // The wake succeeds even if a drive is missing, because otherwise the sandbox would lose its memory. The sandbox is
    // then degraded and reports the cause.
    const entry = { what: "wake", mayLackMounts: true, thaw } as const;
    await bringIntoService(this.#context, this.#parts, live, entry, time);
    events.woke.emit(live);
    events.inService.emit(live);
  }

  /**
   * Thaws the restored instance. A thaw that fails is repeated until the signal aborts, because only this instance has
   * the sandbox's memory. Thawing an instance that already runs does nothing.
   */
  async #thaw(live: LiveSandbox, signal: AbortSignal): Promise<void> {
    const { clock, driver, log, numbers } = this.#context;
    const limit = { ms: numbers.freezeMs, what: "thawing", signal };
    const freezer = requireCapability(driver, "freezer");
    for (;;) {
      try {
        return await within(clock, limit, (inner) => freezer.thaw(live.id, inner));
      } catch (error) {
        signal.throwIfAborted();
        log.warn({ sandbox: live.id, cause: causeOf(error) }, "a thaw failed and is repeated");
        await throwIfAbsent(this.#context, live, signal);
        await clock.sleep(THAW_AGAIN_MS, signal);
      }
    }
  }

  /**
   * Records a failed wake and carries out what the state machine decides: another attempt, a cold start, or the end of
   * the sandbox.
   */
  async failed(live: LiveSandbox, generation: number, error: unknown): Promise<void> {
    const { log, stopping } = this.#context;
    // An aborted wake is not recorded as failed: after a stop the next server continues from the record, and a delete
    // removes the sandbox anyway.
    if (stopping.aborted || live.deletedSignal.aborted) return;
    const cause = causeOf(error);
    log.warn({ sandbox: live.id, generation, cause }, "a wake failed");
    const blame = error instanceof CheckpointUnusable ? "checkpoint" : "try";
    const decision = await live.decideSurely({ type: "wake_failed", generation, cause, blame });
    // The failure no longer applies because the sandbox was proven just before: it serves and keeps its link.
    if (decision === null) return;
    live.detachLink();
    if (decision.record.phase.name === "standby") this.#parts.reaper.reap(live);
    else await this.#parts.loss.handle(live, cause, { mayRun: live.record.instance !== null });
  }
}

/** Pause before a failed thaw is repeated. */
const THAW_AGAIN_MS = 500;

/** Creates the error for a call that was waiting for the wake: the wake took too long, or it failed. */
function wakeError(live: LiveSandbox, error: unknown, { isLate }: { isLate: boolean }): HoldfastError {
  const { id: sandboxId, record } = live;
  const cause = causeOf(error);
  if (!isLate) {
    const message = `The sandbox could not be woken: ${cause.message}`;
    return new HoldfastError("wake_failed", { sandboxId, message, cause: errorOf(cause) });
  }
  const isSaved = record.phase.name === "suspending" && record.phase.saving;
  const what = isSaved
    ? "A checkpoint of the sandbox is still being created"
    : "The sandbox has not woken in time";
  return new HoldfastError("wake_timeout", { sandboxId, message: `${what}: ${cause.message}` });
}

/** Whether the phase of the sandbox is one in which calls are held until the sandbox serves again. */
const isSleeping = ({ record: { phase } }: LiveSandbox): boolean =>
  phase.name === "suspending" || phase.name === "standby" || phase.name === "waking";
