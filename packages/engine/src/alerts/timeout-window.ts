import type { Numbers, SandboxId } from "@holdfast/contract";
import type { EndedExecs } from "./ports.ts";

/** The window moves in steps of a part of it. */
const PARTS = 60;
/** Sandboxes whose timeouts are told apart within one part; those of any further ones are counted in the whole only. */
const SANDBOXES_PER_PART = 1_000;

interface Part {
  /** When it began, in steps since the epoch. */
  step: number;
  ended: number;
  timedOut: number;
  timedOutOf: Map<SandboxId, number>;
}

export interface Timeouts {
  ended: number;
  timedOut: number;
  /** By sandbox; those without any are left out. */
  of: ReadonlyMap<SandboxId, number>;
}

/**
 * How many execs ended lately, and how many of them by their timeout. Counted as they end, in a bounded number of parts, so
 * that nobody reads a table of a million execs every few seconds. What lies in the future was counted before the
 * time of day was set back, and is forgotten.
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

  /** What is still within the window began after this. */
  since(now: number): number {
    return now - this.#windowMs;
  }

  /** In the order of time. */
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
