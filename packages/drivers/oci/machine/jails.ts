import { type DriveId, HoldfastError, NUMBERS, type SandboxId } from "@holdfast/contract";
import { type Clock, type FileAccess, Semaphore } from "@holdfast/engine";
import type { Porter } from "@holdfast/keeper";

export interface JailLimits {
  /** Maximum number of jails that serve file calls at a time. */
  atOnce: number;
  /** Maximum number of file calls that wait for a jail. */
  waiting: number;
  /** How long a file call may wait for a jail. */
  waitMs: number;
}

export interface OpenedFiles {
  files: FileAccess;
  close(): Promise<void>;
}

interface JailOrder {
  /** The drive or sandbox that the files belong to. If calls of several owners wait, the owners are served in turn. */
  owner: DriveId | SandboxId;
  root: string;
  idBase: number;
  idCount: number;
  hidden?: readonly string[];
}

const DEFAULTS: JailLimits = {
  atOnce: NUMBERS.jailsAtOnce,
  waiting: NUMBERS.jailsWaiting,
  waitMs: NUMBERS.fileCallWaitMs,
};

/**
 * Limits the jails that serve the file calls of drives and of sandboxes in standby. Each call needs a jail of its own,
 * which consists of two processes. Without a limit, a few hundred calls at a time would occupy the whole host.
 */
export class Jails {
  readonly #porter: Pick<Porter, "openJail">;
  readonly #clock: Clock;
  readonly #limits: JailLimits;
  readonly #places: Semaphore;

  constructor(porter: Pick<Porter, "openJail">, clock: Clock, limits: JailLimits = DEFAULTS) {
    this.#porter = porter;
    this.#clock = clock;
    this.#limits = limits;
    const onFull = () => this.#busy(`${limits.waiting} more wait for their turn`);
    this.#places = new Semaphore(limits.atOnce, { limit: limits.waiting, onFull });
  }

  /**
   * Opens a jail for one file call, as soon as fewer than `atOnce` jails are in use. The jail of a call that watches
   * files counts only until the watch has begun, because a watch may last for hours. The engine limits the number of
   * watches.
   */
  async open({ owner, root, idBase, idCount, hidden }: JailOrder, signal: AbortSignal): Promise<OpenedFiles> {
    const leave = await this.#enter(owner, signal);
    try {
      const jail = await this.#porter.openJail(root, { idBase, idCount }, signal, hidden);
      const watch = jail.watch.bind(jail);
      const files = Object.assign(jail, {
        watch: async (...call: Parameters<FileAccess["watch"]>) => {
          const changes = await watch(...call);
          leave();
          return changes;
        },
      });
      return { files, close: () => jail.close().finally(leave) };
    } catch (error) {
      leave();
      throw error;
    }
  }

  async #enter(owner: string, signal: AbortSignal): Promise<() => void> {
    const place = this.#places.tryEnter();
    if (place !== null) return place;
    const { waitMs } = this.#limits;
    const limit = this.#clock.deadline(waitMs, "waiting for a file server");
    try {
      return await this.#places.enter(AbortSignal.any([signal, limit.signal]), owner);
    } catch (error) {
      signal.throwIfAborted();
      throw limit.signal.aborted ? this.#busy(`none of them ended within ${waitMs} ms`) : error;
    } finally {
      limit.clear();
    }
  }

  #busy(why: string): HoldfastError {
    const message = `${this.#limits.atOnce} file calls of drives and of sandboxes in standby are in progress, and ${why}.`;
    return new HoldfastError("too_many_file_calls", { message });
  }
}
