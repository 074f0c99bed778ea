import {
  newAlertId,
  newAttemptId,
  newCheckpointId,
  newDeliveryId,
  newDriveId,
  newExecId,
  newPreviewId,
  newProcessId,
  newSandboxId,
  newTokenId,
  randomText,
} from "@holdfast/contract";
import type { Clock, Ids } from "./ports.ts";

/** A clock from its two primitives: what time it is, and being called later. */
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

/** Real time. Sleeps do not hold the process open past its work: the loops that sleep are ended by signal. */
export const systemClock: Clock = clockOf({
  now: () => Date.now(),
  after: (ms, then) => {
    const timer = setTimeout(then, ms);
    return () => clearTimeout(timer);
  },
});

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
  checkpoint: newCheckpointId,
  drive: newDriveId,
  alert: newAlertId,
  delivery: newDeliveryId,
  preview: newPreviewId,
  token: newTokenId,
  process: newProcessId,
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

/** Resolves when one of the signals aborts, or after `ms`. It leaves nothing behind on those that last longer. */
export async function soonest(clock: Clock, ms: number, ...signals: readonly AbortSignal[]): Promise<void> {
  if (ms <= 0 || signals.some(({ aborted }) => aborted)) return;
  const { promise, resolve } = Promise.withResolvers<void>();
  const done = () => resolve();
  const cancel = clock.after(ms, done);
  for (const signal of signals) signal.addEventListener("abort", done, { once: true });
  await promise;
  cancel();
  for (const signal of signals) signal.removeEventListener("abort", done);
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

/** Resolves when the signal aborts. */
export const aborted = (signal: AbortSignal): Promise<void> =>
  new Promise((resolve) => {
    if (signal.aborted) resolve();
    else signal.addEventListener("abort", () => resolve(), { once: true });
  });
