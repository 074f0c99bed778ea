import type { SandboxId } from "@holdfast/contract";

/** An operation in progress that creates or needs processes of one sandbox. */
interface Operation {
  /** Aborts the operation at once. Used if everything that the operation works on is about to be removed. */
  abort: AbortController;
  /** Aborts the operation as soon as that is safe. */
  end: AbortController;
  done: Promise<unknown>;
}

/**
 * The work of an operation on one sandbox. The signal `ended` aborts the work as soon as that is safe; the signal
 * `superseded` aborts it at once.
 */
type Act<Result> = (ended: AbortSignal, superseded: AbortSignal) => Promise<Result>;

/**
 * The operations in progress, at most one for each sandbox: a new one supersedes the one in progress and waits for its
 * end. Two operations at once would create processes and mounts that a stop or a destroy does not know of.
 */
export class Operations {
  readonly #inProgress = new Map<SandboxId, Operation>();

  has(id: SandboxId): boolean {
    return this.#inProgress.has(id);
  }

  async run<Result>(id: SandboxId, signal: AbortSignal, act: Act<Result>): Promise<Result> {
    // Several callers may wait for the end of the same operation. The first of them then begins its own operation,
    // which the others must supersede in turn. So each caller waits until no operation is in progress.
    while (this.#inProgress.has(id)) await this.supersede(id, signal);
    const abort = new AbortController();
    const end = new AbortController();
    const result = act(AbortSignal.any([signal, end.signal]), abort.signal);
    const operation = { abort, end, done: result.catch(() => undefined) };
    this.#inProgress.set(id, operation);
    try {
      return await result;
    } finally {
      this.#inProgress.delete(id);
    }
  }

  /**
   * Aborts the operation in progress and waits for its end, so that it creates nothing after a stop or destroy has
   * begun.
   */
  async supersede(id: SandboxId, signal: AbortSignal): Promise<void> {
    const operation = this.#inProgress.get(id);
    if (operation === undefined) return;
    operation.abort.abort(new Error("a later operation on the sandbox superseded it"));
    const { promise: aborted, reject } = Promise.withResolvers<never>();
    const abort = () => reject(signal.reason);
    if (signal.aborted) abort();
    else signal.addEventListener("abort", abort, { once: true });
    await Promise.race([operation.done, aborted]).finally(() => signal.removeEventListener("abort", abort));
  }

  /** Ends all operations, each as soon as that is safe. */
  async end(reason: Error): Promise<void> {
    const all = [...this.#inProgress.values()];
    for (const { end } of all) end.abort(reason);
    await Promise.all(all.map(({ done }) => done));
  }
}
