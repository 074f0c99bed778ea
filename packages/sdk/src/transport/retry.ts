import { ConnectionError, HoldfastError } from "../errors.ts";

/**
 * Time limits for retrying a failing call. Every retry is bounded. A call that is not idempotent is retried only if its
 * error says `dispatched: no`.
 */
export interface Patience {
  /** How long to retry if a server that has answered before is unreachable: it may be restarting. */
  outageMs: number;
  /** How long to retry if the server has never answered: most likely there is no server at this address. */
  strangerMs: number;
  /** How long to retry if the server responds that it, or a resource, is unavailable. */
  busyMs: number;
}

export const PATIENCE: Patience = { outageMs: 30_000, strangerMs: 1_000, busyMs: 10_000 };

const FIRST_WAIT_MS = 50;
const LONGEST_WAIT_MS = 2_000;
/**
 * Maximum number of attempts. Normally the time limits end the retries long before; this limit ends them if the clock
 * does not advance.
 */
const TRIES_MAX = 10_000;

export interface Failure {
  error: unknown;
  /** Attempts made so far, including the failed one. */
  tries: number;
  /**
   * Time from the first failure to the start of the current attempt. The wait for the attempt's response is not
   * included.
   */
  failingMs: number;
  /** Whether the call can be repeated without further effect. */
  idempotent: boolean;
  /**
   * Whether the call waits for an exec in progress. If so, "unavailable" responses are retried for `outageMs` instead
   * of `busyMs`.
   */
  waiting: boolean;
  /** Whether this client has ever received a response from the server. */
  acquainted: boolean;
  patience: Patience;
  /** Uniform in [0, 1). */
  random: number;
}

/** Returns the milliseconds to wait before the same request is sent again, or null to give up. */
export function retryDelay(failure: Failure): number | null {
  const budgetMs = budgetOf(failure);
  if (budgetMs === null || failure.tries >= TRIES_MAX) return null;
  const delayMs = backoff(failure.tries, failure.random);
  return failure.failingMs + delayMs > budgetMs ? null : delayMs;
}

function budgetOf({ error, idempotent, waiting, acquainted, patience }: Failure): number | null {
  if (!(error instanceof HoldfastError) || !error.retryable) return null;
  if (!idempotent && error.dispatched !== "no") return null;
  if (error instanceof ConnectionError) return acquainted ? patience.outageMs : patience.strangerMs;
  return meansNotNow(error) ? (waiting ? patience.outageMs : patience.busyMs) : null;
}

/**
 * Returns whether an error means "try again later". The server's 503 means that the same request can be sent again, and
 * its 408 that it did not receive the whole request. A proxy's 502 and 504 mean that the server is unreachable.
 * `too_many_readers` and `too_many_watches` may be caused by the caller's own lost connection, and `too_many_held` ends
 * when the sandbox is awake. A failed standby or checkpoint froze the sandbox for a while, so only the caller may
 * decide to try it again.
 */
const meansNotNow = ({ status, code }: HoldfastError): boolean =>
  !COSTLY.has(code) && (status === 503 || status === 408 || PASSING.has(code));

const COSTLY: ReadonlySet<HoldfastError["code"]> = new Set(["standby_failed", "checkpoint_failed"]);

const PASSING: ReadonlySet<HoldfastError["code"]> = new Set([
  "unexpected_response",
  "too_many_readers",
  "too_many_held",
  "too_many_watches",
]);

/**
 * Returns the delay before the next attempt. The delay doubles with each attempt. A random part of the delay, at most
 * half, is then subtracted, so that many clients do not retry at the same time.
 */
export function backoff(tries: number, random: number): number {
  const full = Math.min(LONGEST_WAIT_MS, FIRST_WAIT_MS * 2 ** (tries - 1));
  return full / 2 + (full / 2) * random;
}
