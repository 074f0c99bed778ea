import type { Clock } from "../ports/index.ts";
import type { OneShotEvent } from "./one-shot.ts";

/** The abort reason of a signal whose deadline has passed. */
export class DeadlinePassed extends Error {
  constructor(what: string, ms: number) {
    super(`${what} took longer than ${ms} ms`);
    this.name = "DeadlinePassed";
  }
}

/**
 * Runs `work` with a signal that aborts at the deadline or when the caller's own signal aborts. The timer never
 * outlives the work.
 */
export async function within<Result>(
  clock: Clock,
  limit: { ms: number; what: string; signal?: AbortSignal | undefined },
  work: (signal: AbortSignal) => Promise<Result>,
): Promise<Result> {
  const deadline = clock.deadline(limit.ms, limit.what);
  const signal = limit.signal ? AbortSignal.any([deadline.signal, limit.signal]) : deadline.signal;
  try {
    signal.throwIfAborted();
    return await raced(work(signal), signal);
  } finally {
    deadline.clear();
  }
}

/**
 * Resolves when one of the signals aborts, when one of the events is set, or after `ms`. Then removes its listeners, so
 * that they do not accumulate on signals and events with a long life.
 */
export async function soonest(
  clock: Clock,
  ms: number,
  ...ends: readonly (AbortSignal | OneShotEvent)[]
): Promise<void> {
  if (ms <= 0 || ends.some((end) => ("aborted" in end ? end.aborted : end.isSet))) return;
  const { promise, resolve } = Promise.withResolvers<void>();
  const cleanups = [clock.after(ms, resolve), ...ends.map((end) => onEnd(end, resolve))];
  await promise;
  for (const cleanup of cleanups) cleanup();
}

function onEnd(end: AbortSignal | OneShotEvent, listener: () => void): () => void {
  if ("isSet" in end) return end.onSet(listener);
  end.addEventListener("abort", listener, { once: true });
  return () => end.removeEventListener("abort", listener);
}

/**
 * Settles when the work settles or the signal aborts, whichever is first. Thus work that ignores the signal can't block
 * the caller.
 */
export function raced<Result>(work: Promise<Result>, signal: AbortSignal): Promise<Result> {
  if (signal.aborted) {
    work.catch(() => undefined);
    return Promise.reject(signal.reason);
  }
  return new Promise((resolve, reject) => {
    const aborted = () => reject(signal.reason);
    signal.addEventListener("abort", aborted, { once: true });
    work.then(resolve, reject).finally(() => signal.removeEventListener("abort", aborted));
  });
}

/** Resolves when the signal aborts. */
export const aborted = (signal: AbortSignal): Promise<void> =>
  new Promise((resolve) => {
    if (signal.aborted) resolve();
    else signal.addEventListener("abort", () => resolve(), { once: true });
  });
