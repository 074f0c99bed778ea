import type { CallOptions, CheckpointOptions, Checkpoints } from "../api.ts";
import { wasDoneBefore } from "../errors.ts";
import type { Calls } from "../transport/calls.ts";
import type { Checkpoint, CheckpointList } from "../types.generated.ts";

/**
 * How long the server may take for a checkpoint. It is twice the server's time limit for one checkpoint, because
 * another checkpoint may have to be taken first.
 */
const CHECKPOINT_WAIT_MS = 240_000;

export class CheckpointsOf implements Checkpoints {
  readonly #calls: Calls;
  readonly #base: string;

  constructor(calls: Calls, sandboxId: string) {
    this.#calls = calls;
    this.#base = `/v1/sandboxes/${sandboxId}/checkpoints`;
  }

  create({ name, signal, ...unknown }: CheckpointOptions = {}): Promise<Checkpoint> {
    return this.#calls.json({
      method: "POST",
      path: this.#base,
      json: { name },
      // A request without a name must not be repeated, because each such request creates a checkpoint.
      idempotent: name !== undefined,
      waitMs: CHECKPOINT_WAIT_MS,
      signal,
      unknown,
    });
  }

  async list({ signal, ...unknown }: CallOptions = {}): Promise<Checkpoint[]> {
    const call = { method: "GET", path: this.#base, idempotent: true, signal, unknown } as const;
    return (await this.#calls.json<CheckpointList>(call)).items;
  }

  /**
   * Deletes a checkpoint. A delete by id can be repeated, because an id always refers to the same checkpoint; a name
   * may be reused.
   */
  async delete(idOrName: string, { signal, ...unknown }: CallOptions = {}): Promise<void> {
    const path = `${this.#base}/${encodeURIComponent(idOrName)}`;
    const idempotent = idOrName.startsWith("ckp_");
    try {
      await this.#calls.json({
        method: "DELETE",
        path,
        idempotent,
        waitMs: CHECKPOINT_WAIT_MS,
        signal,
        unknown,
      });
    } catch (error) {
      if (!wasDoneBefore(error, "checkpoint_not_found")) throw error;
    }
  }
}
