import { newAttemptId, newExecId, newSandboxId, randomText } from "@holdfast/contract";
import type { Clock, Ids } from "./ports.ts";

/** Real time. Sleeps do not hold the process open past its work: the loops that sleep are ended by signal. */
export const systemClock: Clock = {
  now: () => Date.now(),
  sleep: (ms, signal) =>
    new Promise((resolve, reject) => {
      if (signal?.aborted) return reject(signal.reason);
      const timer = setTimeout(done, ms);
      function done() {
        signal?.removeEventListener("abort", aborted);
        resolve();
      }
      function aborted() {
        clearTimeout(timer);
        reject(signal?.reason);
      }
      signal?.addEventListener("abort", aborted, { once: true });
    }),
  deadline: (ms, why) => {
    const controller = new AbortController();
    const timer = setTimeout(() => controller.abort(new DeadlinePassed(why, ms)), ms);
    return { signal: controller.signal, clear: () => clearTimeout(timer) };
  },
};

/** The reason of a signal that a deadline aborted. */
export class DeadlinePassed extends Error {
  constructor(what: string, ms: number) {
    super(`${what} took longer than ${ms} ms`);
    this.name = "DeadlinePassed";
  }
}

const FIRST = [
  "amber",
  "brisk",
  "calm",
  "dusky",
  "early",
  "fleet",
  "green",
  "hardy",
  "inner",
  "jolly",
  "keen",
  "lucid",
];
const SECOND = [
  "anchor",
  "beacon",
  "cove",
  "delta",
  "eddy",
  "fjord",
  "gully",
  "harbor",
  "islet",
  "jetty",
  "kelp",
  "lagoon",
];

export const systemIds: Ids = {
  sandbox: newSandboxId,
  exec: newExecId,
  attempt: newAttemptId,
  name: () => `${pick(FIRST)}-${pick(SECOND)}-${randomText(5)}`,
  random: Math.random,
};

const pick = (words: readonly string[]): string =>
  words[Math.floor(Math.random() * words.length)] ?? "holdfast";

/** Runs `work` under a deadline joined with the caller's own signal. The timer never outlives the work. */
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

/** Settles with the work or the signal, whichever is first: an effect that ignores its signal can't hold its caller. */
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
