import type { Cause, Numbers, Stats } from "@holdfast/contract";

/** The circuit breaker of launches: closed allows launches, open refuses them, half-open allows one as a probe. */
export type BreakerState =
  | { name: "closed"; failures: number }
  | { name: "open"; failures: number; until: number; cause: Cause }
  | { name: "half-open"; failures: number; cause: Cause };

export type BreakerInput =
  | { type: "ask"; now: number }
  | { type: "succeeded" }
  /** The probe was aborted before it had a result. */
  | { type: "overtaken"; now: number }
  | { type: "failed"; now: number; cause: Cause };

type Settings = Pick<Numbers, "launchFailuresMax" | "launchesSuspendedMs">;

export const BREAKER_CLOSED: BreakerState = { name: "closed", failures: 0 };

/** The names of the breaker's states in the API, where `open` means that launches are allowed. */
const API_STATES: Record<BreakerState["name"], Stats["launches"]["state"]> = {
  closed: "open",
  open: "suspended",
  "half-open": "probing",
};

export const launchesState = ({ name }: BreakerState): Stats["launches"]["state"] => API_STATES[name];

/**
 * Whether the breaker still refuses launches at `now`. If the remaining wait is longer than the suspension, the clock
 * was set back, and launches are allowed.
 */
export const isSuspended = (until: number, now: number, { launchesSuspendedMs }: Settings): boolean =>
  now < until && until - now <= launchesSuspendedMs;

/**
 * Computes the next state. Returns null if the input asks for a launch and the launch is refused. After several
 * failures in a row launches are refused for a while, because more attempts do not help a host on which no launch
 * succeeds. Then one launch is allowed as a probe, and its outcome decides whether the others are allowed too. Pure.
 */
export function nextBreaker(
  state: BreakerState,
  input: BreakerInput,
  settings: Settings,
): BreakerState | null {
  switch (input.type) {
    case "ask":
      if (state.name === "closed") return state;
      if (state.name === "half-open" || isSuspended(state.until, input.now, settings)) return null;
      return { name: "half-open", failures: state.failures, cause: state.cause };
    case "succeeded":
      return BREAKER_CLOSED;
    case "overtaken":
      if (state.name !== "half-open") return state;
      return { name: "open", failures: state.failures, until: input.now, cause: state.cause };
    case "failed": {
      const failures = state.failures + 1;
      const { cause, now } = input;
      if (state.name === "closed" && failures < settings.launchFailuresMax)
        return { name: "closed", failures };
      return { name: "open", failures, until: now + settings.launchesSuspendedMs, cause };
    }
  }
}
