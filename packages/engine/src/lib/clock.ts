import type { Clock } from "../ports/index.ts";
import { DeadlinePassed } from "./deadline.ts";

/** Builds a clock from its two primitives: the current time and a timer. */
export function clockOf({ now, after }: Pick<Clock, "now" | "after">): Clock {
  return {
    now,
    after,
    sleep: (ms, signal) =>
      new Promise((resolve, reject) => {
        if (signal?.aborted) return reject(signal.reason);
        const cancel = after(ms, () => {
          signal?.removeEventListener("abort", aborted);
          resolve();
        });
        function aborted() {
          cancel();
          reject(signal?.reason);
        }
        signal?.addEventListener("abort", aborted, { once: true });
      }),
    deadline: (ms, why) => {
      const controller = new AbortController();
      const clear = after(ms, () => controller.abort(new DeadlinePassed(why, ms)));
      return { signal: controller.signal, clear };
    },
  };
}

/**
 * The clock of the host. Its timers keep the Node process running, so a loop that sleeps on this clock needs a signal
 * that ends it.
 */
export const systemClock: Clock = clockOf({
  now: () => Date.now(),
  after: (ms, then) => {
    const timer = setTimeout(then, ms);
    return () => clearTimeout(timer);
  },
});
