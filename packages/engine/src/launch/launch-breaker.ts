import type { Cause, Numbers } from "@holdfast/contract";

/** Whether launches are let through. */
export type BreakerState =
  | { name: "open"; failures: number }
  | { name: "suspended"; failures: number; until: number; cause: Cause }
  /** One launch is on its way to find out. */
  | { name: "probing"; failures: number; cause: Cause };

export type BreakerInput =
  | { type: "ask"; now: number }
  | { type: "succeeded" }
  /** The probe was given up before it could tell. */
  | { type: "overtaken"; now: number }
  | { type: "failed"; now: number; cause: Cause };

type Settings = Pick<Numbers, "launchFailuresMax" | "launchesSuspendedMs">;

export const LAUNCHES_OPEN: BreakerState = { name: "open", failures: 0 };

/** A suspension never has longer to go than it lasts: where it seems to, the time of day was set back. */
export const isSuspended = (until: number, now: number, { launchesSuspendedMs }: Settings): boolean =>
  now < until && until - now <= launchesSuspendedMs;

/**
 * A host on which nothing starts is not helped by a thousand more tries. After several failures in a row launches are
 * refused for a while; then one is let through, and its outcome decides for all. Pure: who asks and is answered null may
 * not launch.
 */
export function nextBreaker(
  state: BreakerState,
  input: BreakerInput,
  settings: Settings,
): BreakerState | null {
  switch (input.type) {
    case "ask":
      if (state.name === "open") return state;
      if (state.name === "probing" || isSuspended(state.until, input.now, settings)) return null;
      return { name: "probing", failures: state.failures, cause: state.cause };
    case "succeeded":
      return LAUNCHES_OPEN;
    case "overtaken":
      if (state.name !== "probing") return state;
      return { name: "suspended", failures: state.failures, until: input.now, cause: state.cause };
    case "failed": {
      const failures = state.failures + 1;
      const { cause, now } = input;
      if (state.name === "open" && failures < settings.launchFailuresMax) return { name: "open", failures };
      return { name: "suspended", failures, until: now + settings.launchesSuspendedMs, cause };
    }
  }
}
