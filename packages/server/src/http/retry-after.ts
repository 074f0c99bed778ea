import { ERRORS, type ErrorCode, type Numbers } from "@holdfast/contract";

/** Refusals that pass: the caller's pace, the host's room, or a part that is on its way back. */
const PASSING_STATUSES = [429, 503, 507] as const;
type PassingStatus = (typeof PASSING_STATUSES)[number];
type PassingCode = {
  [Code in ErrorCode]: (typeof ERRORS)[Code]["status"] extends PassingStatus ? Code : never;
}[ErrorCode];

/**
 * After how long the same request has a chance: when whatever stands in its way is next looked at, as far as that is
 * known; else how long such a thing usually takes.
 */
const WAIT_MS: Readonly<Record<PassingCode, (numbers: Numbers) => number>> = {
  too_many_sandboxes: () => 10_000,
  too_many_execs: () => 1_000,
  /** As long as a wake usually takes; all that are held are let go with it. */
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
  /** By then one launch is let through to probe. */
  launches_suspended: ({ launchesSuspendedMs }) => launchesSuspendedMs,
  /** What is degraded is proven again at this pace. */
  sandbox_degraded: ({ maintainEveryMs }) => maintainEveryMs,
  /** Drives are looked at at this pace. */
  drive_degraded: ({ observeEveryMs }) => observeEveryMs,
  mount_failed: () => 2_000,
  link_lost: ({ linkRetryMaxMs }) => linkRetryMaxMs,
  /** When it is tried again by itself, where idleness asks for it. */
  standby_failed: ({ standbyRetryMs }) => standbyRetryMs,
  /** Nothing tries it again by itself; by then the calls that it found under way are over. */
  checkpoint_failed: () => 10_000,
  /** The wake goes on, and the next request is held for it as well. */
  wake_timeout: () => 1_000,
  starting: () => 1_000,
  shutting_down: () => 2_000,
};

/** For the Retry-After header, from the error itself where that knows better; null where waiting alone changes nothing. */
export function retryAfterSeconds(code: ErrorCode, numbers: Numbers, knownMs?: number): number | null {
  return isPassing(code) ? Math.max(1, Math.ceil((knownMs ?? WAIT_MS[code](numbers)) / 1_000)) : null;
}

export const isPassingStatus = (status: number): boolean =>
  PASSING_STATUSES.some((passing) => passing === status);

const isPassing = (code: ErrorCode): code is PassingCode => isPassingStatus(ERRORS[code].status);
