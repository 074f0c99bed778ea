import type { Numbers, SandboxId } from "@holdfast/contract";
import type { EndedExecs } from "../ports/index.ts";

/** Number of parts of the window. The window moves by one part at a time. */
const PARTS = 60;
/**
 * Maximum number of sandboxes whose timeouts are counted individually within one part. Timeouts of further sandboxes
 * are counted in the total only.
 */
const SANDBOXES_PER_PART = 1_000;

interface Part {
  /** The start of the part, as a number of steps of `stepMs` since the epoch. */
  step: number;
  ended: number;
  timedOut: number;
  timedOutOf: Map<SandboxId, number>;
}

interface Timeouts {
  ended: number;
  timedOut: number;
  /** Number of timeouts by sandbox. Sandboxes without timeouts are omitted. */
  of: ReadonlyMap<SandboxId, number>;
}

/**
 * Counts the execs that ended within a sliding window, and those of them that timed out. Execs are counted as they end,
 * in a bounded number of parts, because reading a table of a million execs every few seconds would be too slow. A part
 * whose time is in the future was counted before the clock was set back, and is dropped.
 */
export class TimeoutWindow {
  readonly #windowMs: number;
  /** Oldest first. */
  #parts: Part[] = [];

  constructor({ alertWindowMs }: Pick<Numbers, "alertWindowMs">) {
    this.#windowMs = Math.max(PARTS, alertWindowMs);
  }

  get stepMs(): number {
    return Math.ceil(this.#windowMs / PARTS);
  }

  /** The start of the window. */
  since(now: number): number {
    return now - this.#windowMs;
  }

  /** Counts ended execs. Must be called in chronological order. */
  count({ at, sandboxId, ended, timedOut }: EndedExecs): void {
    const part = this.#part(at);
    part.ended += ended;
    part.timedOut += timedOut;
    const before = part.timedOutOf.get(sandboxId);
    const isCounted = before !== undefined || part.timedOutOf.size < SANDBOXES_PER_PART;
    if (timedOut > 0 && isCounted) part.timedOutOf.set(sandboxId, (before ?? 0) + timedOut);
  }

  read(now: number): Timeouts {
    this.#forget(now);
    const of = new Map<SandboxId, number>();
    let ended = 0;
    let timedOut = 0;
    for (const part of this.#parts) {
      ended += part.ended;
      timedOut += part.timedOut;
      for (const [id, count] of part.timedOutOf) of.set(id, (of.get(id) ?? 0) + count);
    }
    return { ended, timedOut, of };
  }

  #part(at: number): Part {
    const step = Math.floor(at / this.stepMs);
    const last = this.#parts.at(-1);
    if (last?.step === step) return last;
    this.#forget(at);
    const part = { step, ended: 0, timedOut: 0, timedOutOf: new Map<SandboxId, number>() };
    this.#parts.push(part);
    return part;
  }

  #forget(now: number): void {
    const isWithin = ({ step }: Part) =>
      step * this.stepMs <= now && (step + 1) * this.stepMs > this.since(now);
    this.#parts = this.#parts.filter(isWithin);
  }
}
