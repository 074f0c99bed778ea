import { type Cause, causeOf, type Recovery } from "@holdfast/contract";
import type { Cell } from "./cell.ts";
import { within } from "./clock.ts";
import {
  type Act,
  climb,
  dueInMs,
  type Episode,
  isOnLadder,
  KEEPS_BREAKING,
  type Step,
  triedIn,
} from "./ladder.ts";
import type { NewEvent } from "./ports.ts";
import type { Prover } from "./prover.ts";
import type { World } from "./world.ts";

export interface HealerParts {
  cells(): Iterable<Cell>;
  prover: Prover;
  /** The instance is not to be saved: it is ended, and its policy decides what follows. */
  giveUp(cell: Cell, generation: number, cause: Cause): Promise<void>;
  /** A fresh look at one of them. */
  look(cell: Cell): Promise<void>;
  /** Whether somebody holds sandboxes frozen because the disk runs out. */
  isDiskLow(): boolean;
}

/** What one sandbox has been through. */
interface Chart {
  episode: Episode | null;
  /** When it was healed, newest last; as many as matter. */
  heals: number[];
  busy: boolean;
  /** Why the last step did not work, where it didn't. */
  failure: Cause | null;
  /** It is to be ended, and others are first. */
  isHeldBack: boolean;
}

const MINUTE = 60_000;
/** A tick that took longer than this many was not lived through: the server, or the host, stood still. */
const TICKS_LIVED = 3;

/**
 * Carries out what the ladder decides. A sandbox whose keeper was stopped, whose root was taken away or whose link hangs
 * would stay degraded until a person comes; here it is linked anew, thawed, mounted again and, if nothing of that helps,
 * ended, to be started again or kept for inspection as its policy says. Each sandbox is worked on by itself, nobody waits
 * for another's, and what is done is bounded by a deadline. Nothing is done about what can't be seen: `unknown` is not
 * evidence. Restarts are counted in the record, and limited over all sandboxes, since what breaks many at once is the host.
 */
export class Healer {
  readonly #world: World;
  readonly #parts: HealerParts;
  readonly #charts = new WeakMap<Cell, Chart>();
  /** Of whom the instance was ended within the last minute, and when. */
  readonly #restarts = new Map<Cell, number>();

  constructor(world: World, parts: HealerParts) {
    this.#world = world;
    this.#parts = parts;
  }

  async run(): Promise<void> {
    const { clock, numbers, stopping } = this.#world;
    let before = clock.now();
    while (!stopping.aborted) {
      await clock.sleep(numbers.healEveryMs, stopping).catch(() => undefined);
      if (stopping.aborted) return;
      const now = clock.now();
      const passedMs = Math.min(Math.max(0, now - before), numbers.healEveryMs * TICKS_LIVED);
      before = now;
      for (const cell of this.#parts.cells()) this.#tick(cell, { now, passedMs });
    }
  }

  /** What is being done about a sandbox; null where there is nothing to do. */
  recovery(cell: Cell): Recovery | null {
    const chart = this.#charts.get(cell);
    const episode = chart?.episode ?? null;
    if (chart === undefined || episode === null) return null;
    const { clock, numbers } = this.#world;
    const { step, startedAt, tries, cause } = episode;
    const made = step === "wait" || step === "hold" ? 0 : (tries[step] ?? 0);
    const failed = chart.failure === null ? "" : ` It did not work: ${sentence(chart.failure.message)}`;
    const says = chart.isHeldBack ? this.#heldBack() : SAYS[step] + failed;
    const dueMs = chart.isHeldBack ? this.#turnInMs() : dueInMs(episode, numbers);
    return {
      step,
      since: new Date(startedAt).toISOString(),
      tries: made,
      nextAt: new Date(clock.now() + dueMs).toISOString(),
      message: `${sentence(cause.message)} ${says} Done so far: ${triedIn(episode)}.`,
    };
  }

  #tick(cell: Cell, time: { now: number; passedMs: number }): void {
    const chart = this.#charts.get(cell);
    const { status, cause } = cell.judge();
    if (chart === undefined && status !== "degraded") return;
    const known = chart ?? { episode: null, heals: [], busy: false, failure: null, isHeldBack: false };
    this.#charts.set(cell, known);
    if (known.busy || this.#isHeldForDisk(cause)) return;
    const { numbers } = this.#world;
    const isRecent = (at: number) => Math.abs(time.now - at) < numbers.healWindowMs;
    known.heals = known.heals.filter(isRecent).slice(-numbers.healsMax);
    const healsLately = known.heals.length;
    const { episode, act } = climb(known.episode, { status, cause, healsLately }, time, numbers);
    if (act?.do === "restart" && !this.#mayRestart(cell, time.now)) {
      this.#holdBack(cell, known, act.cause);
      return;
    }
    known.episode = episode;
    known.isHeldBack = false;
    if (episode === null || episode.step === "hold") known.failure = null;
    if (act !== null) void this.#carryOut(cell, known, act);
  }

  /** Told once: it is decided again every moment. */
  #holdBack(cell: Cell, chart: Chart, cause: Cause): void {
    if (chart.isHeldBack) return;
    chart.isHeldBack = true;
    const message = `${this.#heldBack()} It does not serve: ${sentence(cause.message)}`;
    void this.#say(cell, "sandbox.healing", message, { step: "restart", waits: true, cause });
  }

  #heldBack(): string {
    const { healRestartsPerMinute: most } = this.#world.numbers;
    return `Its instance is to be ended, and waits for its turn: no more than ${most} are in a minute, since what breaks many at once is the host.`;
  }

  /** What is frozen while the disk runs out is frozen for that, whichever server did it. */
  #isHeldForDisk = (cause: Cause | null): boolean => cause?.code === "frozen" && this.#parts.isDiskLow();

  /** Until another instance may be ended. */
  #turnInMs(): number {
    const oldest = Math.min(...this.#restarts.values());
    return Math.min(MINUTE, Math.max(0, oldest + MINUTE - this.#world.clock.now()));
  }

  /** One that breaks again and again takes one place: its own limit is in its record. */
  #mayRestart(cell: Cell, now: number): boolean {
    for (const [other, at] of this.#restarts) if (Math.abs(now - at) >= MINUTE) this.#restarts.delete(other);
    const most = this.#world.numbers.healRestartsPerMinute;
    if (!this.#restarts.has(cell) && this.#restarts.size >= most) return false;
    this.#restarts.set(cell, now);
    return true;
  }

  async #carryOut(cell: Cell, chart: Chart, act: Act): Promise<void> {
    chart.busy = true;
    try {
      if (act.do === "confirm") await this.#confirm(cell, chart, act.by);
      else if (act.do === "restart") await this.#giveUp(cell, chart, act.cause);
      else await this.#step(cell, act);
    } catch (error) {
      chart.failure = causeOf(error);
      if (this.#world.stopping.aborted || act.do === "confirm") return;
      const message = `That did not work: ${sentence(chart.failure.message)}`;
      await this.#say(cell, "sandbox.healing", message, { step: act.do, failed: true, cause: chart.failure });
    } finally {
      chart.busy = false;
      cell.changed();
    }
  }

  async #step(cell: Cell, { do: step, attempt, cause }: Exclude<Act, { do: "confirm" }>): Promise<void> {
    const { clock, driver, numbers, stopping } = this.#world;
    const message = `${SAYS[step]} It does not serve: ${sentence(cause.message)}`;
    await this.#say(cell, "sandbox.healing", message, { step, attempt, cause });
    if (cell.record.phase.name !== "running") return;
    const signal = AbortSignal.any([stopping, cell.fence.signal]);
    if (step === "relink") cell.links?.renew();
    else {
      const limit = { ms: numbers.freezeMs, what: `the step ${step}`, signal };
      await within(clock, limit, (inner) => {
        const done = step === "thaw" ? driver.thaw(cell.id, inner) : driver.remount(cell.id, inner);
        cell.mending = Promise.allSettled([cell.mending, done]).then(() => undefined);
        return done;
      });
    }
    await this.#parts.prover.prove(cell);
  }

  async #confirm(cell: Cell, chart: Chart, by: Step): Promise<void> {
    const { clock, numbers } = this.#world;
    const proof = await this.#parts.prover.prove(cell);
    if (!proof.ok || cell.judge().status !== "ready") return;
    chart.episode = null;
    chart.heals.push(clock.now());
    const heldMs = numbers.healHoldMs;
    const message = `It serves again, by ${by}, and has for ${Math.round(heldMs / 1000)} s.`;
    await this.#say(cell, "sandbox.healed", message, { by, heldMs });
  }

  async #giveUp(cell: Cell, chart: Chart, seen: Cause): Promise<void> {
    const { episode } = chart;
    if (episode === null) return;
    // It is ended on what is seen now, and not on what was seen seconds ago.
    await this.#parts.look(cell);
    const now = cell.judge();
    if (now.status !== "degraded" || !isOnLadder(now.cause)) return;
    const seconds = Math.round(episode.unservedMs / 1000);
    const { restart: _last, ...gentle } = episode.tries;
    const message = `It has not served for ${seconds} s (${seen.message}), and could not be healed. Tried: ${triedIn({ ...episode, tries: gentle })}.`;
    const cause: Cause = {
      code: seen.code === KEEPS_BREAKING ? seen.code : "not_healed",
      message,
      cause: seen,
    };
    const { generation } = cell.record;
    const attempt = episode.tries.restart ?? 1;
    await this.#say(cell, "sandbox.healing", `${SAYS.restart} ${message}`, {
      step: "restart",
      attempt,
      cause,
    });
    await this.#parts.giveUp(cell, generation, cause);
  }

  async #say(
    cell: Cell,
    type: "sandbox.healing" | "sandbox.healed",
    message: string,
    data: NonNullable<NewEvent["data"]>,
  ): Promise<void> {
    const { clock, store, log } = this.#world;
    const { id: sandboxId, generation } = cell.record;
    log.info({ sandbox: sandboxId, generation, ...data }, message);
    const event = { at: clock.now(), type, sandboxId, generation, message, data };
    await store.commit({ changes: [], events: [event] }).catch((error: unknown) => {
      log.error({ sandbox: sandboxId, cause: causeOf(error) }, "a step of recovery could not be told of");
    });
  }
}

/** Causes are quoted from many places, with a full stop or without. */
const sentence = (text: string): string => (/[.!?]$/.test(text) ? text : `${text}.`);

const SAYS: Record<Recovery["step"], string> = {
  wait: "It may heal by itself.",
  relink: "A new link to its keeper is made.",
  thaw: "Its processes are let run.",
  remount: "Its root is put back where the host sees it.",
  restart: "Its instance is ended, and its policy decides what follows.",
  hold: "It serves again, and has to for a while.",
};
