import { HoldfastError } from "@holdfast/contract";
import { DeadlinePassed, within } from "../lib/deadline.ts";
import { releaseOnEnd } from "../lib/release-on-end.ts";
import { Semaphore } from "../lib/semaphore.ts";
import type { LiveSandbox } from "../live/live-sandbox.ts";
import type { EngineContext } from "../ports/context.ts";
import type { FileAccess, Link } from "../ports/index.ts";

/**
 * Limits the file calls that occupy a slot in a keeper: those that have a file or directory open, and long removals. A
 * keeper has a fixed number of slots and refuses further calls. Calls beyond that number wait in the server in order of
 * arrival, up to a maximum count and time. Some of the keeper's slots are left free for proofs, so that a proof never
 * waits behind slow transfers.
 */
export class FileSlots {
  readonly #context: EngineContext;
  /** Keyed by link, because the keeper has no open files on a new link. */
  readonly #byLink = new WeakMap<Link, Semaphore>();

  constructor(context: EngineContext) {
    this.#context = context;
  }

  /** Returns the file access of the link. A call that occupies a slot in the keeper first waits until one is free. */
  filesOf(live: LiveSandbox, link: Link): FileAccess {
    const { files } = link;
    const enter = (signal: AbortSignal) => this.#enter(live, link, signal);
    const whileIn = async <Result>(signal: AbortSignal, work: () => Promise<Result>): Promise<Result> => {
      const leave = await enter(signal);
      return work().finally(leave);
    };
    return {
      stat: (...call) => files.stat(...call),
      list: (path, options, signal) => whileIn(signal, () => files.list(path, options, signal)),
      read: async (path, range, signal) => {
        const leave = await enter(signal);
        try {
          const { stat, body } = await files.read(path, range, signal);
          return { stat, body: releaseOnEnd(body, leave, signal) };
        } catch (error) {
          leave();
          throw error;
        }
      },
      write: (path, body, options, signal) => whileIn(signal, () => files.write(path, body, options, signal)),
      remove: (path, options, signal) => whileIn(signal, () => files.remove(path, options, signal)),
      mkdir: (...call) => files.mkdir(...call),
      rename: (...call) => files.rename(...call),
      chmod: (...call) => files.chmod(...call),
      symlink: (...call) => files.symlink(...call),
      touch: (...call) => files.touch(...call),
      watch: (...call) => files.watch(...call),
    };
  }

  async #enter(live: LiveSandbox, link: Link, signal: AbortSignal): Promise<() => void> {
    const { fileCallsPerSandbox, fileCallsWaiting, fileCallWaitMs: ms } = this.#context.numbers;
    const busy = (waited: string) => {
      const message = `${fileCallsPerSandbox} files of the sandbox are open already, and ${waited}.`;
      return new HoldfastError("too_many_file_calls", { sandboxId: live.id, message });
    };
    let slots = this.#byLink.get(link);
    if (slots === undefined) {
      const onFull = () => busy(`${fileCallsWaiting} file calls wait for their turn`);
      slots = new Semaphore(fileCallsPerSandbox, { limit: fileCallsWaiting, onFull });
      this.#byLink.set(link, slots);
    }
    return (
      slots.tryEnter() ?? this.#wait(slots, signal, () => busy(`none of them was closed within ${ms} ms`))
    );
  }

  async #wait(slots: Semaphore, signal: AbortSignal, busy: () => HoldfastError): Promise<() => void> {
    const { clock, numbers } = this.#context;
    const limit = { ms: numbers.fileCallWaitMs, what: "waiting for a free place", signal };
    let entering: Promise<() => void> | null = null;
    try {
      return await within(clock, limit, (inner) => {
        entering = slots.enter(inner);
        return entering;
      });
    } catch (error) {
      // The semaphore may grant the slot just as the wait ends with an error. In that case the slot is given back.
      giveBack(entering);
      signal.throwIfAborted();
      if (!(error instanceof DeadlinePassed)) throw error;
      throw busy();
    }
  }
}

function giveBack(entering: Promise<() => void> | null): void {
  entering?.then(
    (leave) => leave(),
    () => undefined,
  );
}
