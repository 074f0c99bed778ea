import type { Numbers } from "@holdfast/contract";

/**
 * After a failed attempt to put an idle sandbox into standby, delays the next attempt. The delay doubles with each
 * failure.
 */
export class StandbyBackoff {
  #failures = 0;
  #notBefore = 0;

  /** Whether an idle sandbox may be suspended again at this time. */
  allows(now: number): boolean {
    return now >= this.#notBefore;
  }

  noteFailure(
    now: number,
    { standbyRetryMs, standbyRetryMaxMs }: Pick<Numbers, "standbyRetryMs" | "standbyRetryMaxMs">,
  ): void {
    const wait = standbyRetryMs * 2 ** Math.min(this.#failures, 10);
    this.#failures += 1;
    this.#notBefore = now + Math.min(wait, standbyRetryMaxMs);
  }

  noteSuccess(): void {
    this.#failures = 0;
  }
}
