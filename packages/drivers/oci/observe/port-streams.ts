import type { SandboxId } from "@holdfast/contract";
import { LinkLost, StreamCut } from "@holdfast/engine";

/**
 * Tracks the open port streams of each sandbox, so that all of them are cut before a dump and none is opened until the
 * dump is over. CRIU can't dump a keeper that has one end of a stream open, and the keeper closes its end only when the
 * server closes the other end. Streams of an earlier server have ended with that server.
 */
export class PortStreams {
  readonly #open = new Map<SandboxId, AbortController>();
  readonly #shut = new Map<SandboxId, number>();

  /** Registers a stream. Returns a signal that aborts when the caller's signal aborts, and when all streams are cut. */
  begin(id: SandboxId, signal: AbortSignal): AbortSignal {
    if (this.#shut.has(id)) throw new LinkLost("a checkpoint of the sandbox is being written", "no");
    const open = this.#open.get(id) ?? new AbortController();
    this.#open.set(id, open);
    return AbortSignal.any([signal, open.signal]);
  }

  cut(id: SandboxId, why: string): void {
    const open = this.#open.get(id);
    this.#open.delete(id);
    open?.abort(new StreamCut(why));
  }

  /** Cuts all streams, then runs `act`. No stream can be opened while `act` runs. */
  async without<Result>(id: SandboxId, act: () => Promise<Result>): Promise<Result> {
    this.#shut.set(id, (this.#shut.get(id) ?? 0) + 1);
    this.cut(id, "a checkpoint of the sandbox is being written");
    try {
      return await act();
    } finally {
      const others = (this.#shut.get(id) ?? 0) - 1;
      if (others > 0) this.#shut.set(id, others);
      else this.#shut.delete(id);
    }
  }
}
