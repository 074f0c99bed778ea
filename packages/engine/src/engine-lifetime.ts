import { HoldfastError } from "@holdfast/contract";
import { recordEvent } from "./events/record-event.ts";
import type { EngineContext } from "./ports/context.ts";
import { type StartupParts, startUp } from "./startup.ts";

interface LifetimeParts extends StartupParts {
  /** The parts with a loop, which runs until the engine stops. */
  loops: readonly { run(): Promise<unknown> }[];
}

/**
 * Starts and stops the engine. When it stops, its loops end and its links are closed, but instances keep running. The
 * next engine's `start` finds them, because all durable state is in the store and every instance belongs to a lease.
 */
export class EngineLifetime {
  readonly #context: EngineContext;
  readonly #stopping: AbortController;
  readonly #parts: LifetimeParts;
  #state: "new" | "recovering" | "serving" | "stopped" = "new";
  #running: Promise<unknown>[] = [];

  /** `stopping` must be the controller of the context's signal. */
  constructor(context: EngineContext, stopping: AbortController, parts: LifetimeParts) {
    this.#context = context;
    this.#stopping = stopping;
    this.#parts = parts;
  }

  async start(): Promise<void> {
    this.#state = "recovering";
    const sandboxes = await startUp(this.#context, this.#parts);
    // Each loop handles failures of the store, the driver and the keepers itself. If a loop rejects nevertheless, that
    // is a bug: the unhandled rejection ends the process, and the next server continues from the store.
    this.#running = this.#parts.loops.map((part) => part.run());
    this.#state = "serving";
    this.#context.log.info({ sandboxes }, "recovered");
  }

  async stop(): Promise<void> {
    if (this.#state === "stopped") return;
    this.#state = "stopped";
    this.#stopping.abort(new HoldfastError("shutting_down"));
    for (const live of this.#parts.registry.allLive()) live.closeLink();
    await Promise.allSettled(this.#running);
    const message = "The server stopped; sandboxes keep running.";
    await recordEvent(this.#context, { at: this.#context.clock.now(), type: "server.stopped", message });
  }

  /** Says why the engine does not serve yet, or no longer; null if it serves. */
  unreadiness(): string | null {
    return this.#state === "serving" ? null : `the engine is ${this.#state}`;
  }
}
