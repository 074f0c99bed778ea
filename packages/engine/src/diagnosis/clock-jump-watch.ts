import type { World } from "./world.ts";

/** A sleep that is off by more than this was not only late. */
const JUMP_MS = 30_000;

/**
 * Notices that the clock was set, or stood still with the host: a loop that sleeps for a known time tells how long that
 * took by the clock. Nothing is decided by it; it explains ages and dates that look odd.
 */
export class ClockWatch {
  readonly #world: World;
  last: { at: number; byMs: number } | null = null;

  constructor(world: World) {
    this.#world = world;
  }

  /** To be told how long a loop has slept, as it asked for and by the clock. */
  slept(askedMs: number, byClockMs: number): void {
    const byMs = byClockMs - askedMs;
    if (Math.abs(byMs) < JUMP_MS) return;
    const at = this.#world.clock.now();
    this.last = { at, byMs };
    this.#world.log.warn({ byMs }, "the clock jumped, or the server stood still");
  }
}
