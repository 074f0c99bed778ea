import type { CallOptions, CheckpointOptions, Checkpoints } from "./api.ts";
import type { Calls } from "./calls.ts";
import { wasDoneBefore } from "./errors.ts";
import type { Checkpoint, CheckpointList } from "./types.generated.ts";

/** What the server gives a checkpoint, and one that is before it in line. */
const CHECKPOINT_WAIT_MS = 240_000;

export class CheckpointsOf implements Checkpoints {
  readonly #calls: Calls;
  readonly #base: string;

  constructor(calls: Calls, sandboxId: string) {
    this.#calls = calls;
    this.#base = `/v1/sandboxes/${sandboxId}/checkpoints`;
  }

  create({ name, signal }: CheckpointOptions = {}): Promise<Checkpoint> {
    return this.#calls.json({
      method: "POST",
      path: this.#base,
      json: { name },
      // Without a name each request makes one.
      idempotent: name !== undefined,
      waitMs: CHECKPOINT_WAIT_MS,
      signal,
    });
  }

  async list({ signal }: CallOptions = {}): Promise<Checkpoint[]> {
    const call = { method: "GET", path: this.#base, idempotent: true, signal } as const;
    return (await this.#calls.json<CheckpointList>(call)).items;
  }

  /** An id means the same checkpoint for ever, so that an order to remove it can be repeated; a name may be given anew. */
  async delete(idOrName: string, { signal }: CallOptions = {}): Promise<void> {
    const path = `${this.#base}/${encodeURIComponent(idOrName)}`;
    const idempotent = idOrName.startsWith("ckp_");
    try {
      await this.#calls.json({ method: "DELETE", path, idempotent, waitMs: CHECKPOINT_WAIT_MS, signal });
    } catch (error) {
      if (!wasDoneBefore(error, "checkpoint_not_found")) throw error;
    }
  }
}
