import { ConnectionError, HoldfastError } from "./errors.ts";

/** How long a failing call is repeated. All of it is bounded; nothing is repeated that could happen twice. */
export interface Patience {
  /** For a server that has answered before and is now away: it may be restarting. */
  outageMs: number;
  /** For one that never answered: most likely it is not there. */
  strangerMs: number;
  /** For one that says "not now". */
  busyMs: number;
}

export const PATIENCE: Patience = { outageMs: 30_000, strangerMs: 1_000, busyMs: 10_000 };

const FIRST_WAIT_MS = 50;
const LONGEST_WAIT_MS = 2_000;
/** Against a clock that stands still; the budgets end long before it. */
const TRIES_AT_MOST = 10_000;

export interface Failure {
  error: unknown;
  /** Tries made so far, the failed one included. */
  tries: number;
  /** Since the first failure: what a request waited for its answer before that was no outage. */
  failingMs: number;
  /** Whether doing it twice is the same as doing it once. */
  idempotent: boolean;
  /** Whether an exec under way is waited for: then a server that says "not now" is borne like one that is away. */
  waiting: boolean;
  /** Whether this client ever had an answer. */
  acquainted: boolean;
  patience: Patience;
  /** Uniform in [0, 1). */
  random: number;
}

/** Milliseconds to wait before the same request is sent again; null: give up. */
export function retryDelay(failure: Failure): number | null {
  const budgetMs = budgetOf(failure);
  if (budgetMs === null || failure.tries >= TRIES_AT_MOST) return null;
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
 * Of what the server says itself 503 means "send the same again", and 408 that it never had the whole of it; a proxy's 502 and 504 are its words for an outage.
 * The place of a reader whose connection was lost may be taken by its own former self for a while, and those of calls that wait
 * for a wake are free when that is over. A standby or a checkpoint that failed cost the sandbox a freeze: another try is the caller's to order.
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

/** Doubles from try to try, with jitter over its upper half so that many clients don't come back at once. */
export function backoff(tries: number, random: number): number {
  const full = Math.min(LONGEST_WAIT_MS, FIRST_WAIT_MS * 2 ** (tries - 1));
  return full / 2 + (full / 2) * random;
}
