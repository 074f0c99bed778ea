import { HoldfastError } from "@holdfast/contract";
import { LiveSandbox } from "../live/live-sandbox.ts";
import type { SandboxRegistry } from "../live/sandbox-registry.ts";
import type { EngineContext } from "../ports/context.ts";
import { StoreConflict } from "../ports/index.ts";
import type { SandboxRecord } from "../ports/records.ts";

/** Takes over sandboxes whose files were imported. */
export class Adoption {
  readonly #context: EngineContext;
  readonly #registry: SandboxRegistry;

  constructor(context: EngineContext, registry: SandboxRegistry) {
    this.#context = context;
    this.#registry = registry;
  }

  /** Stores and registers a sandbox in standby, whose files the caller has put in place. */
  async adopt(record: SandboxRecord): Promise<void> {
    const { clock, store } = this.#context;
    const { id: sandboxId, name } = record;
    const message = `Sandbox ${name} was imported, and is in standby.`;
    const event = { at: clock.now(), type: "sandbox.created", sandboxId, message } as const;
    await store
      .commit({ changes: [{ kind: "sandbox.insert", record }], events: [event] })
      .catch((error: unknown) => {
        if (!(error instanceof StoreConflict)) throw error;
        throw new HoldfastError("name_taken", { message: `A sandbox named ${name} already exists.` });
      });
    this.#registry.add(new LiveSandbox(this.#context, record));
  }
}
