import { ERRORS, type ErrorCode, type Numbers } from "@holdfast/contract";

/**
 * Statuses of temporary errors, after which the same request can succeed later. Their cause is a rate limit, a lack of
 * host capacity, or a component that is recovering.
 */
const PASSING_STATUSES = [429, 503, 507] as const;
type PassingStatus = (typeof PASSING_STATUSES)[number];
type PassingCode = {
  [Code in ErrorCode]: (typeof ERRORS)[Code]["status"] extends PassingStatus ? Code : never;
}[ErrorCode];

/**
 * How long a client should wait before it repeats a request, by error code. If the server checks the condition
 * periodically, the client waits for the next check. Otherwise it waits as long as the condition usually lasts.
 */
const WAIT_MS: Readonly<Record<PassingCode, (numbers: Numbers) => number>> = {
  /** A sandbox at its limit of started execs stays there until the caller raises the limit, so the wait is long. */
  exec_limit: () => 30_000,
  too_many_checkpoints: () => 30_000,
  too_many_drives: () => 30_000,
  too_many_sandboxes: () => 10_000,
  too_many_execs: () => 1_000,
  too_many_file_calls: () => 1_000,
  /**
   * Usual duration of a wake. The calls that are held until the wake is done then continue and no longer count against
   * the limit.
   */
  too_many_held: () => 1_000,
  too_many_readers: () => 5_000,
  too_many_watches: () => 5_000,
  too_many_mounts: () => 30_000,
  too_many_previews: () => 30_000,
  too_many_streams: () => 1_000,
  too_many_processes: () => 30_000,
  low_memory: () => 15_000,
  capacity: () => 5_000,
  disk_full: () => 30_000,
  /** Time after which the circuit breaker admits one launch as a probe. */
  launches_suspended: ({ launchesSuspendedMs }) => launchesSuspendedMs,
  /** Interval at which the server proves degraded sandboxes again. */
  sandbox_degraded: ({ maintainEveryMs }) => maintainEveryMs,
  /** Interval at which the server checks drives. */
  drive_degraded: ({ observeEveryMs }) => observeEveryMs,
  mount_failed: () => 2_000,
  link_lost: ({ linkRetryMaxMs }) => linkRetryMaxMs,
  /** Time after which the server tries again to suspend an idle sandbox. */
  standby_failed: ({ standbyRetryMs }) => standbyRetryMs,
  /** A failed checkpoint is not retried automatically. The calls that blocked it have usually ended after this time. */
  checkpoint_failed: () => 10_000,
  /** The wake continues in the background after its timeout, and the next request waits for it. */
  wake_timeout: () => 1_000,
  wake_failed: () => 2_000,
  starting: () => 1_000,
  shutting_down: () => 2_000,
};

/**
 * Returns the value of the Retry-After header; null if waiting does not help. `knownMs` is the wait that the error
 * itself estimates; it is used instead of the usual wait for the error's code.
 */
export function retryAfterSeconds(code: ErrorCode, numbers: Numbers, knownMs?: number): number | null {
  return isPassing(code) ? Math.max(1, Math.ceil((knownMs ?? WAIT_MS[code](numbers)) / 1_000)) : null;
}

export const isPassingStatus = (status: number): boolean =>
  PASSING_STATUSES.some((passing) => passing === status);

const isPassing = (code: ErrorCode): code is PassingCode => isPassingStatus(ERRORS[code].status);
