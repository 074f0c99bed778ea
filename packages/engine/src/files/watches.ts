import { type FileChange, HoldfastError } from "@holdfast/contract";
import type { Cell } from "./cell.ts";
import { translate } from "./gate.ts";
import { type Clock, KeeperRefusal, LinkLost } from "./ports.ts";

/** Watches at the same time: so many of sandboxes, and so many of drives. */
const WATCHES_MAX = 256;
/** A watch counts as use of its sandbox this often, and more often where that sleeps sooner. */
const USE_EVERY_MS = 5_000;
const USES_BEFORE_IDLE = 3;

/** How many watches there are: forgotten ones must not pile up. */
export class Watches {
  #count = 0;

  /** Takes a place, or refuses; the place is given back by calling the answer, once. */
  enter(): () => void {
    if (this.#count >= WATCHES_MAX) {
      const message = `There are ${WATCHES_MAX} watches already.`;
      throw new HoldfastError("too_many_watches", { message });
    }
    this.#count += 1;
    return () => {
      this.#count -= 1;
    };
  }
}

/** Counts as use of the sandbox until the answer is called. What sleeps all the same is not used. */
export function keptAwake(clock: Clock, cell: Cell): () => void {
  const { idleStandbyMs = Number.POSITIVE_INFINITY } = cell.record.spec.lifecycle;
  const everyMs = Math.min(USE_EVERY_MS, idleStandbyMs / USES_BEFORE_IDLE);
  let cancel = () => {};
  const use = () => {
    if (!cell.isAsleep) cell.touch();
    cancel = clock.after(everyMs, use);
  };
  use();
  return () => cancel();
}

interface Watched {
  changes: AsyncIterable<FileChange>;
  isHidden(path: string): boolean;
  /** What to say of an error. */
  why(error: unknown): unknown;
  signal: AbortSignal;
}

/**
 * Does not end by itself, but with the signal's reason or with why there is nothing more to come. No generator, whose
 * `return` would wait for a change.
 */
export function watched({ changes, isHidden, why, signal }: Watched): AsyncIterable<FileChange> {
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
        throw why(new LinkLost("nothing more comes", "yes"));
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

/** Why a path is not, or no longer, watched. */
export function whyUnwatched(error: unknown, path: string, cell?: Cell): unknown {
  if (error instanceof KeeperRefusal && isAboutRoom(error))
    return new HoldfastError("too_many_watches", { message: `${error.message}: ${path}`, cause: error });
  const about = cell === undefined ? { path } : { path, sandboxId: cell.id };
  if (!(error instanceof LinkLost) || cell === undefined) return translate(error, about);
  const refusal = cell.refusal();
  if (refusal !== null) return refusal;
  if (!cell.isAsleep) return translate(error, about);
  const message = "The sandbox was put to sleep, which ends a watch. To watch it again wakes it.";
  return new HoldfastError("link_lost", { sandboxId: cell.id, dispatched: "yes", message, cause: error });
}

/** The kernel says ENOSPC where no directory can be watched any more. */
const isAboutRoom = ({ reason, errno }: KeeperRefusal): boolean =>
  reason === "limit" || errno === "ENOSPC" || errno === "EMFILE";
