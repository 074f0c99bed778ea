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
  /** This condition ends only when the caller deletes something or an operator changes a setting. */
  exec_limit: () => 30_000,
  too_many_checkpoints: () => 30_000,
  too_many_drives: () => 30_000,
  too_many_sandboxes: () => 10_000,
  too_many_execs: () => 1_000,
  too_many_file_calls: () => 1_000,
  /** A wake usually takes this long. When it is done, all calls that wait for it continue. */
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
  /** The circuit breaker of launches lets one launch through as a probe after this time. */
  launches_suspended: ({ launchesSuspendedMs }) => launchesSuspendedMs,
  /** The server proves degraded sandboxes again at this interval. */
  sandbox_degraded: ({ maintainEveryMs }) => maintainEveryMs,
  /** The server checks drives at this interval. */
  drive_degraded: ({ observeEveryMs }) => observeEveryMs,
  mount_failed: () => 2_000,
  link_lost: ({ linkRetryMaxMs }) => linkRetryMaxMs,
  /** The server tries to suspend an idle sandbox again after this time. */
  standby_failed: ({ standbyRetryMs }) => standbyRetryMs,
  /** A failed checkpoint is not retried automatically; after this time the calls that blocked it have usually ended. */
  checkpoint_failed: () => 10_000,
  /** The wake continues in the background, and the next request waits for it. */
  wake_timeout: () => 1_000,
  wake_failed: () => 2_000,
  starting: () => 1_000,
  shutting_down: () => 2_000,
};

/**
 * Returns the value of the Retry-After header; null if waiting does not help. If the error contains an estimate,
 * `knownMs`, the estimate is used instead of the usual time.
 */
export function retryAfterSeconds(code: ErrorCode, numbers: Numbers, knownMs?: number): number | null {
  return isPassing(code) ? Math.max(1, Math.ceil((knownMs ?? WAIT_MS[code](numbers)) / 1_000)) : null;
}

export const isPassingStatus = (status: number): boolean =>
  PASSING_STATUSES.some((passing) => passing === status);

const isPassing = (code: ErrorCode): code is PassingCode => isPassingStatus(ERRORS[code].status);
