import {
  type Cause,
  causeOf,
  HoldfastError,
  isHoldfastError,
  isSandboxId,
  type SandboxId,
} from "@holdfast/contract";
import type { Reaper } from "../launch/reaper.ts";
import { within } from "../lib/deadline.ts";
import type { LiveSandbox } from "../live/live-sandbox.ts";
import type { SandboxRegistry } from "../live/sandbox-registry.ts";
import type { EngineContext } from "../ports/context.ts";
import type { Found } from "../ports/index.ts";
import type { SandboxRecord } from "../ports/records.ts";

interface DeleteParts {
  registry: SandboxRegistry;
  reaper: Reaper;
  /** Stops and removes orphans: sandboxes on the host that no readable record owns. */
  orphans: { remove(orphan: Found): Promise<void> };
}

/**
 * Deletes sandboxes. A delete is recorded before anything is stopped, and takes precedence over every other operation.
 */
export class Deletion {
  readonly #context: EngineContext;
  readonly #parts: DeleteParts;

  constructor(context: EngineContext, parts: DeleteParts) {
    this.#context = context;
    this.#parts = parts;
  }

  /**
   * Records the delete and starts it. `cause` says why the sandbox is deleted without a request. Does nothing if
   * `stillWanted` is given and returns false when the delete is decided.
   */
  async requestDelete(
    live: LiveSandbox,
    graceMs: number,
    { cause = null, stillWanted }: { cause?: Cause | null; stillWanted?: () => boolean } = {},
  ): Promise<void> {
    await live.decide({ type: "delete", cause }, [], stillWanted).catch((error: unknown) => {
      const message = "The delete could not be recorded, so nothing was done.";
      throw new HoldfastError("internal", { sandboxId: live.id, message, cause: error });
    });
    if (stillWanted !== undefined && live.record.phase.name !== "deleting") return;
    live.markDeleted();
    this.#parts.reaper.reap(live, { graceMs });
  }

  /** Deletes the sandbox with this id or name, waits a limited time until it is gone, and returns its record. */
  async delete(
    ref: string,
    options: { graceMs: number; waitMs?: number | undefined; signal: AbortSignal },
  ): Promise<SandboxRecord> {
    const { registry } = this.#parts;
    const record =
      registry.live(ref)?.record ??
      (await registry.stored(ref).catch((error: unknown) => this.#deleteUnreadable(ref, error)));
    const live = registry.live(record.id);
    if (live === undefined) return record;
    await this.requestDelete(live, options.graceMs);
    await this.#untilGone(live, options.waitMs ?? this.#context.numbers.deleteWaitMs, options.signal);
    return live.record;
  }

  /**
   * Deletes a sandbox for this cause and waits a limited time until it is gone. Does not delete it if `stillWanted`
   * returns false when the delete is decided.
   */
  async deleteIf(
    live: LiveSandbox,
    cause: Cause | null,
    stillWanted: () => boolean,
  ): Promise<"removed" | "ordered" | "kept"> {
    const { numbers, stopping } = this.#context;
    await this.requestDelete(live, 0, { cause, stillWanted });
    if (live.record.phase.name !== "deleting" && !isGone(live)) return "kept";
    await this.#untilGone(live, numbers.deleteWaitMs, stopping);
    return isGone(live) ? "removed" : "ordered";
  }

  /** Waits up to `ms` until the sandbox is gone. After that the reaper continues, and the record stays `deleting`. */
  async #untilGone(live: LiveSandbox, ms: number, signal: AbortSignal): Promise<void> {
    if (ms <= 0) return;
    const limit = { ms, what: "the delete", signal };
    await within(this.#context.clock, limit, (inner) => live.until(() => isGone(live), inner)).catch(
      () => undefined,
    );
  }

  /**
   * Removes a sandbox whose record is unreadable or missing. The removal starts at once, because the request shows that
   * the sandbox is unwanted.
   */
  async #deleteUnreadable(ref: string, error: unknown): Promise<never> {
    if (!isHoldfastError(error) || error.code !== "pending_cleanup" || !isSandboxId(ref)) throw error;
    const { clock, store } = this.#context;
    const id = ref;
    await this.#parts.orphans
      .remove({ sandboxId: id, things: [], alive: true })
      .catch((cause: unknown) => stillThere(id, cause));
    if ((await store.unreadable()).includes(id)) {
      const at = clock.now();
      const message = "Nothing of the sandbox is left. Its record could not be read.";
      const event = { at, type: "sandbox.terminated", sandboxId: id, message } as const;
      const changes = [{ kind: "sandbox.scrap", id, at } as const];
      await store
        .commit({ changes, events: [event], counters: { terminated: 1 } })
        .catch((cause: unknown) => stillThere(id, cause));
    }
    throw new HoldfastError("sandbox_gone", {
      sandboxId: id,
      message: "The remains of the sandbox were removed.",
    });
  }
}

const isGone = (live: LiveSandbox): boolean => live.record.phase.name === "gone";

function stillThere(sandboxId: SandboxId, error: unknown): never {
  const message = `The remains of the sandbox could not be removed: ${causeOf(error).message}. Its record can't be read; delete it again.`;
  throw new HoldfastError("pending_cleanup", { sandboxId, message, cause: error });
}
