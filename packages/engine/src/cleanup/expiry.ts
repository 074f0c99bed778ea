import { aborted } from "../lib/deadline.ts";
import type { EngineEvents } from "../live/engine-events.ts";
import type { LiveSandbox } from "../live/live-sandbox.ts";
import type { SandboxRegistry } from "../live/sandbox-registry.ts";
import type { EngineContext } from "../ports/context.ts";
import { factsOf, removalDueAt } from "./sweep-rules.ts";
import type { Sweeps } from "./sweeps.ts";

interface ExpiryParts {
  events: EngineEvents;
  registry: SandboxRegistry;
  sweeps: Sweeps;
}

/**
 * Removes sandboxes when they expire. Its timers are only hints. When a timer ends, the removal rules decide whether
 * the sandbox is removed. The sweeps remove sandboxes whose timer was early, late or lost, because clocks jump and
 * timers end with their server.
 */
export class Expiry {
  readonly #context: EngineContext;
  readonly #parts: ExpiryParts;
  readonly #timers = new Map<LiveSandbox, () => void>();
  #isRunning = false;

  constructor(context: EngineContext, parts: ExpiryParts) {
    this.#context = context;
    this.#parts = parts;
    parts.events.sandboxAdded.subscribe((live) => this.watch(live));
    parts.events.sandboxRemoved.subscribe((live) => this.#clear(live));
  }

  /**
   * Sets the timer of every sandbox that exists when the engine has started, and clears all timers when the engine
   * stops.
   */
  async run(): Promise<void> {
    this.#isRunning = true;
    // Sandboxes may have expired while no server was running.
    void this.#parts.sweeps.conservative();
    for (const live of this.#parts.registry.allLive()) this.watch(live);
    await aborted(this.#context.stopping);
    for (const live of [...this.#timers.keys()]) this.#clear(live);
  }

  /** Sets the timer of a sandbox that was added or whose lifecycle settings were changed. */
  watch(live: LiveSandbox): void {
    this.#clear(live);
    const { clock, numbers, stopping } = this.#context;
    const dueAt = removalDueAt(factsOf(live));
    if (dueAt === null || !this.#isRunning || stopping.aborted) return;
    const now = clock.now();
    // A sandbox that still exists after its due time is in use, or its removal failed. It is checked again later.
    const ms = dueAt > now ? Math.min(dueAt - now, numbers.expiryTimerMaxMs) : numbers.maintainEveryMs;
    this.#timers.set(
      live,
      clock.after(ms, () => this.#fire(live)),
    );
  }

  #fire(live: LiveSandbox): void {
    this.#timers.delete(live);
    void this.#parts.sweeps.removeIfDue(live);
    if (live.record.phase.name !== "deleting" && live.record.phase.name !== "gone") this.watch(live);
  }

  #clear(live: LiveSandbox): void {
    this.#timers.get(live)?.();
    this.#timers.delete(live);
  }
}
