import type { SandboxId } from "@holdfast/contract";
import { LinkLost, StreamCut } from "@holdfast/engine";

/**
 * Knows what has been dialled of each sandbox. A keeper that still has one end of a stream can't be put on disk, and only
 * the other end, which is here, tells it that the stream is over: so they are all cut before a dump, and none is begun
 * until that is over. Those of an earlier server went with it.
 */
export class Dials {
  readonly #open = new Map<SandboxId, AbortController>();
  readonly #shut = new Map<SandboxId, number>();

  /** For one more stream: the asker's signal, which is aborted as well when all have to go. */
  begin(id: SandboxId, signal: AbortSignal): AbortSignal {
    if (this.#shut.has(id)) throw new LinkLost("the memory of the sandbox is being written", "no");
    const open = this.#open.get(id) ?? new AbortController();
    this.#open.set(id, open);
    return AbortSignal.any([signal, open.signal]);
  }

  cut(id: SandboxId, why: string): void {
    const open = this.#open.get(id);
    this.#open.delete(id);
    open?.abort(new StreamCut(why));
  }

  /** Does something that no stream may outlive or begin in. */
  async without<Result>(id: SandboxId, act: () => Promise<Result>): Promise<Result> {
    this.#shut.set(id, (this.#shut.get(id) ?? 0) + 1);
    this.cut(id, "the memory of the sandbox is being written");
    try {
      return await act();
    } finally {
      const others = (this.#shut.get(id) ?? 0) - 1;
      if (others > 0) this.#shut.set(id, others);
      else this.#shut.delete(id);
    }
  }
}
