import type { EngineContext } from "../ports/context.ts";

/**
 * By how much the requested and the measured length of a sleep must differ to indicate a clock jump and not just a late
 * timer.
 */
const JUMP_MS = 30_000;

/**
 * Detects that the host's clock was set, or that the host was suspended, by comparing the length of a sleep with the time
 * that passed on the clock. The result triggers no action; it explains odd ages and dates in a diagnosis.
 */
export class ClockJumpWatch {
  readonly #context: EngineContext;
  last: { at: number; byMs: number } | null = null;

  constructor(context: EngineContext) {
    this.#context = context;
  }

  /** Must be called after each sleep of a loop, with the requested time and the time that passed on the clock. */
  slept(askedMs: number, byClockMs: number): void {
    const byMs = byClockMs - askedMs;
    if (Math.abs(byMs) < JUMP_MS) return;
    const at = this.#context.clock.now();
    this.last = { at, byMs };
    this.#context.log.warn({ byMs }, "the clock jumped, or the server was suspended");
  }
}
