import { type Cause, causeOf, type Recovery } from "@holdfast/contract";
import { recordEvent } from "../events/record-event.ts";
import type { Prover } from "../launch/prover.ts";
import { within } from "../lib/deadline.ts";
import { iso } from "../lib/format.ts";
import type { InstanceLoss } from "../lifecycle/instance-loss.ts";
import type { LiveSandbox } from "../live/live-sandbox.ts";
import type { SandboxRegistry } from "../live/sandbox-registry.ts";
import type { EngineContext } from "../ports/context.ts";
import type { NewEvent } from "../ports/index.ts";
import { requireCapability } from "../ports/index.ts";
import {
  type Act,
  describeTries,
  dueInMs,
  type Episode,
  KEEPS_BREAKING,
  nextStep,
  reasonToEnd,
  type Step,
} from "./healing-ladder.ts";
import type { Observer } from "./observer.ts";

interface HealerParts {
  registry: SandboxRegistry;
  prover: Prover;
  /** Ends an instance that could not be healed. The sandbox's policy decides what happens then. */
  loss: InstanceLoss;
  observer: Observer;
  /** Reports whether the host's disk is low. While it is low, frozen sandboxes are not thawed. */
  diskGuard: { readonly isLow: boolean };
}

/** The healing state of one sandbox. */
interface Chart {
  episode: Episode | null;
  /**
   * Times at which the sandbox was healed within the last `healWindowMs`, oldest first. At most the last `healsMax` are
   * kept.
   */
  heals: number[];
  busy: boolean;
  /** Why the last step failed; null if it did not fail. */
  failure: Cause | null;
  /** Whether the restart of this sandbox is delayed by the limit on restarts per minute. */
  isHeldBack: boolean;
}

const MINUTE = 60_000;
/**
 * Maximum time that one tick adds to the durations of an episode, as a multiple of the interval between ticks. A longer
 * gap between two ticks shows that the server or the host was suspended.
 */
const TICKS_LIVED = 3;

/**
 * Executes the steps of the healing ladder. A sandbox whose keeper was stopped, whose root was unmounted or whose link
 * hangs would otherwise stay degraded until a person intervenes. The healer opens a new link, thaws the sandbox and
 * remounts its file systems. If none of these steps helps, it ends the instance, and the sandbox's policy decides
 * whether the sandbox is restarted or kept for inspection. Each sandbox is healed independently of the others, and
 * every step has a deadline. An `unknown` observation is no evidence, so it causes no step. Restarts are counted in
 * each sandbox's record. They are also limited across all sandboxes, because a fault that affects many sandboxes at
 * once is most likely a fault of the host.
 */
export class Healer {
  readonly #context: EngineContext;
  readonly #parts: HealerParts;
  readonly #charts = new WeakMap<LiveSandbox, Chart>();
  /** Sandboxes whose instance the healer ended within the last minute, and the time at which it did so. */
  readonly #restarts = new Map<LiveSandbox, number>();

  constructor(context: EngineContext, parts: HealerParts) {
    this.#context = context;
    this.#parts = parts;
  }

  async run(): Promise<void> {
    const { clock, numbers, stopping } = this.#context;
    let before = clock.now();
    while (!stopping.aborted) {
      await clock.sleep(numbers.healEveryMs, stopping).catch(() => undefined);
      if (stopping.aborted) return;
      const now = clock.now();
      const passedMs = Math.min(Math.max(0, now - before), numbers.healEveryMs * TICKS_LIVED);
      before = now;
      for (const live of this.#parts.registry.allLive()) this.#tick(live, { now, passedMs });
    }
  }

  /** Returns the state of a healing in progress; null if there is none. */
  recovery(live: LiveSandbox): Recovery | null {
    const chart = this.#charts.get(live);
    const episode = chart?.episode ?? null;
    if (chart === undefined || episode === null) return null;
    const { clock, numbers } = this.#context;
    const { step, startedAt, tries, cause } = episode;
    const made = step === "wait" || step === "hold" ? 0 : (tries[step] ?? 0);
    const failed =
      chart.failure === null ? "" : ` The last attempt failed: ${sentence(chart.failure.message)}`;
    const action = chart.isHeldBack ? this.#restartDelay() : STEP_TEXTS[step] + failed;
    const dueMs = chart.isHeldBack ? this.#turnInMs() : dueInMs(episode, numbers);
    return {
      step,
      since: iso(startedAt),
      tries: made,
      nextAt: iso(clock.now() + dueMs),
      message: `${sentence(cause.message)} ${action} Steps so far: ${describeTries(episode)}.`,
    };
  }

  #tick(live: LiveSandbox, time: { now: number; passedMs: number }): void {
    const chart = this.#charts.get(live);
    const { status, cause } = live.judge();
    if (chart === undefined && status !== "degraded") return;
    const known = chart ?? { episode: null, heals: [], busy: false, failure: null, isHeldBack: false };
    this.#charts.set(live, known);
    if (known.busy || this.#isHeldForDisk(cause)) return;
    const { numbers } = this.#context;
    const isRecent = (at: number) => Math.abs(time.now - at) < numbers.healWindowMs;
    known.heals = known.heals.filter(isRecent).slice(-numbers.healsMax);
    const healsLately = known.heals.length;
    const { episode, act } = nextStep(known.episode, { status, cause, healsLately }, time, numbers);
    if (act?.do === "restart" && !this.#mayRestart(live, time.now)) {
      this.#holdBack(live, known, act.cause);
      return;
    }
    const before = known.episode;
    known.episode = episode;
    known.isHeldBack = false;
    if (episode === null || episode.step === "hold") known.failure = null;
    if (act !== null) void this.#carryOut(live, known, act, before);
  }

  /** Records once that the restart is delayed, although every tick makes the same decision. */
  #holdBack(live: LiveSandbox, chart: Chart, cause: Cause): void {
    if (chart.isHeldBack) return;
    chart.isHeldBack = true;
    const message = `${this.#restartDelay()} The sandbox is not serving: ${sentence(cause.message)}`;
    void this.#record(live, "sandbox.healing", message, { step: "restart", waits: true, cause });
  }

  #restartDelay(): string {
    const { healRestartsPerMinute: most } = this.#context.numbers;
    return `Ending its instance is delayed: at most ${most} instances are ended per minute, because a fault of many sandboxes at once is the host's.`;
  }

  /**
   * Whether the sandbox is frozen to protect the disk. While the disk is low, every freeze has that purpose, whether
   * this server or an earlier one made it.
   */
  #isHeldForDisk = (cause: Cause | null): boolean => cause?.code === "frozen" && this.#parts.diskGuard.isLow;

  /** Returns the time until the limit on restarts per minute allows the healer to end another instance. */
  #turnInMs(): number {
    const oldest = Math.min(...this.#restarts.values());
    return Math.min(MINUTE, Math.max(0, oldest + MINUTE - this.#context.clock.now()));
  }

  /**
   * Whether the limit on restarts per minute allows this restart; if so, the restart is counted. Repeated restarts of
   * one sandbox count once against this limit, because its record has a limit of its own.
   */
  #mayRestart(live: LiveSandbox, now: number): boolean {
    for (const [other, at] of this.#restarts) if (Math.abs(now - at) >= MINUTE) this.#restarts.delete(other);
    const most = this.#context.numbers.healRestartsPerMinute;
    if (!this.#restarts.has(live) && this.#restarts.size >= most) return false;
    this.#restarts.set(live, now);
    return true;
  }

  async #carryOut(live: LiveSandbox, chart: Chart, act: Act, before: Episode | null): Promise<void> {
    chart.busy = true;
    try {
      if (act.do === "confirm") await this.#confirm(live, chart, act.by);
      else if (act.do === "restart") await this.#giveUp(live, chart, before);
      else await this.#step(live, act);
    } catch (error) {
      chart.failure = causeOf(error);
      if (this.#context.stopping.aborted || act.do === "confirm") return;
      const message = `The step failed: ${sentence(chart.failure.message)}`;
      await this.#record(live, "sandbox.healing", message, {
        step: act.do,
        failed: true,
        cause: chart.failure,
      });
    } finally {
      chart.busy = false;
      live.changed();
    }
  }

  async #step(
    live: LiveSandbox,
    { do: step, attempt, cause }: Exclude<Act, { do: "confirm" }>,
  ): Promise<void> {
    const { clock, driver, numbers, stopping } = this.#context;
    const message = `${STEP_TEXTS[step]} The sandbox is not serving: ${sentence(cause.message)}`;
    await this.#record(live, "sandbox.healing", message, { step, attempt, cause });
    if (live.record.phase.name !== "running") return;
    const signal = AbortSignal.any([stopping, live.deletedSignal]);
    if (step === "relink") live.renewLink();
    else {
      const limit = { ms: numbers.freezeMs, what: `the step ${step}`, signal };
      await within(clock, limit, (inner) => {
        const done =
          step === "thaw"
            ? requireCapability(driver, "freezer").thaw(live.id, inner)
            : requireCapability(driver, "outsideView").remount(live.id, inner);
        live.trackHealing(done);
        return done;
      });
    }
    await this.#parts.prover.prove(live);
  }

  async #confirm(live: LiveSandbox, chart: Chart, by: Step): Promise<void> {
    const { clock, numbers } = this.#context;
    const proof = await this.#parts.prover.prove(live);
    if (!proof.ok || live.judge().status !== "ready") return;
    chart.episode = null;
    chart.heals.push(clock.now());
    const heldMs = numbers.healHoldMs;
    const message = `Recovered by ${by}; healthy for ${Math.round(heldMs / 1000)} s.`;
    await this.#record(live, "sandbox.healed", message, { by, heldMs });
  }

  /** Ends the instance, unless a current observation shows that this is no longer necessary. */
  async #giveUp(live: LiveSandbox, chart: Chart, before: Episode | null): Promise<void> {
    const { episode } = chart;
    if (episode === null) return;
    // The decision needs a current observation, because the last one may be seconds old.
    await this.#parts.observer.observe([live]);
    const seen = { ...live.judge(), healsLately: chart.heals.length };
    const reason = reasonToEnd(episode, seen, this.#context.numbers);
    if (reason === null) {
      chart.episode = before;
      return;
    }
    const seconds = Math.round(episode.unservedMs / 1000);
    const { restart: _last, ...gentle } = episode.tries;
    const message = `The sandbox has not served for ${seconds} s (${reason.message}) and could not be healed. Tried: ${describeTries({ ...episode, tries: gentle })}.`;
    const cause: Cause = {
      code: reason.code === KEEPS_BREAKING ? reason.code : "not_healed",
      message,
      cause: reason,
    };
    const { generation } = live.record;
    const attempt = episode.tries.restart ?? 1;
    await this.#record(live, "sandbox.healing", `${STEP_TEXTS.restart} ${message}`, {
      step: "restart",
      attempt,
      cause,
    });
    await this.#parts.loss.giveUp(live, generation, cause);
  }

  async #record(
    live: LiveSandbox,
    type: "sandbox.healing" | "sandbox.healed",
    message: string,
    data: NonNullable<NewEvent["data"]>,
  ): Promise<void> {
    const { clock, log } = this.#context;
    const { id: sandboxId, generation } = live.record;
    log.info({ sandbox: sandboxId, generation, ...data }, message);
    await recordEvent(this.#context, { at: clock.now(), type, sandboxId, generation, message, data });
  }
}

/** Ends the text with a full stop, because only some messages of causes have one. */
const sentence = (text: string): string => (/[.!?]$/.test(text) ? text : `${text}.`);

const STEP_TEXTS: Record<Recovery["step"], string> = {
  wait: "The sandbox may heal by itself.",
  relink: "Making a new link to its keeper.",
  thaw: "Thawing its processes.",
  remount: "Remounting its root.",
  restart: "Ending its instance; its policy decides what follows.",
  hold: "The sandbox serves again and is on probation.",
};
