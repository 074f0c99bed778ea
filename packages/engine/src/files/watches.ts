import { type FileChange, HoldfastError } from "@holdfast/contract";
import type { LiveSandbox } from "../live/live-sandbox.ts";
import { translate } from "../model/keeper-errors.ts";
import { type Clock, KeeperRefusal, LinkLost } from "../ports/index.ts";

/** Maximum number of open watches: one limit for sandboxes and one for drives. */
const WATCHES_MAX = 256;
/**
 * How often an open watch renews the activity time of its sandbox. If the sandbox has a short `idleStandbyMs`, the
 * interval is shorter.
 */
const USE_EVERY_MS = 5_000;
const USES_BEFORE_IDLE = 3;

/** Limits the number of open watches, so that abandoned ones do not accumulate. */
export class Watches {
  #count = 0;

  /**
   * Registers a watch; throws if the maximum is reached. The caller unregisters it by calling the returned function
   * once.
   */
  enter(): () => void {
    if (this.#count >= WATCHES_MAX) {
      const message = `${WATCHES_MAX} watches are already open.`;
      throw new HoldfastError("too_many_watches", { message });
    }
    this.#count += 1;
    return () => {
      this.#count -= 1;
    };
  }
}

/**
 * Marks the sandbox as in use, again and again, until the returned function is called. While the sandbox is in standby,
 * it is not marked.
 */
export function keepAwake(clock: Clock, live: LiveSandbox): () => void {
  const { idleStandbyMs = Number.POSITIVE_INFINITY } = live.record.spec.lifecycle;
  const everyMs = Math.min(USE_EVERY_MS, idleStandbyMs / USES_BEFORE_IDLE);
  let cancel = () => {};
  const use = () => {
    if (!live.isAsleep) live.touch();
    cancel = clock.after(everyMs, use);
  };
  use();
  return () => cancel();
}

interface Watched {
  changes: AsyncIterable<FileChange>;
  isHidden(path: string): boolean;
  /** Converts an error for the caller. */
  why(error: unknown): unknown;
  signal: AbortSignal;
}

/**
 * Iterates over the changes. The iterator never ends normally: it throws the signal's reason, or the reason why no more
 * changes come. It is not a generator: a generator's `return` would wait for the next change.
 */
export function iterateChanges({ changes, isHidden, why, signal }: Watched): AsyncIterable<FileChange> {
  const source = changes[Symbol.asyncIterator]();
  let isLeft = false;
  const iterator: AsyncIterator<FileChange> = {
    async next() {
      for (;;) {
        const step = await source.next().catch((error: unknown) => {
          throw why(error);
        });
        if (!step.done && isHidden(step.value.path)) continue;
        if (!step.done || isLeft) return step;
        signal.throwIfAborted();
        throw why(new LinkLost("the watch ended", "yes"));
      }
    },
    async return() {
      isLeft = true;
      await source.return?.();
      return { done: true, value: undefined };
    },
  };
  return { [Symbol.asyncIterator]: () => iterator };
}

/** Converts the error of a watch that could not start or has ended into the error that the caller gets. */
export function toWatchError(error: unknown, path: string, live?: LiveSandbox): unknown {
  if (error instanceof KeeperRefusal && isWatchLimit(error))
    return new HoldfastError("too_many_watches", { message: `${error.message}: ${path}`, cause: error });
  const about = live === undefined ? { path } : { path, sandboxId: live.id };
  if (!(error instanceof LinkLost) || live === undefined) return translate(error, about);
  const refusal = live.refusal();
  if (refusal !== null) return refusal;
  if (!live.isAsleep) return translate(error, about);
  const message = "The sandbox was suspended, which ends its watches. A new watch wakes it.";
  return new HoldfastError("link_lost", { sandboxId: live.id, dispatched: "yes", message, cause: error });
}

/** Whether the kernel's limit of watches was reached, which the kernel reports as ENOSPC. */
const isWatchLimit = ({ reason, errno }: KeeperRefusal): boolean =>
  reason === "limit" || errno === "ENOSPC" || errno === "EMFILE";
