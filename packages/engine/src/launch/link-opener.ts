import { recordEvent } from "../events/record-event.ts";
import { within } from "../lib/deadline.ts";
import type { EngineEvents } from "../live/engine-events.ts";
import { forkExecIds } from "../live/fork-exec-ids.ts";
import type { LiveSandbox } from "../live/live-sandbox.ts";
import { PersistentLink } from "../live/persistent-link.ts";
import type { EngineContext } from "../ports/context.ts";
import type { Link } from "../ports/index.ts";

/**
 * Opens the link to a sandbox's keeper, and reports losses and restorations of the link as engine events and on the
 * timeline.
 */
export class LinkOpener {
  readonly #context: EngineContext;
  readonly #events: EngineEvents;
  #lost = 0;

  constructor(context: EngineContext, events: EngineEvents) {
    this.#context = context;
    this.#events = events;
  }

  /** How many times a link was lost since the server started. */
  get lostCount(): number {
    return this.#lost;
  }

  /** Opens the link, unless the sandbox has one or has no instance. */
  open(live: LiveSandbox): void {
    const { instance } = live.record;
    if (instance === null || live.isLinked) return;
    let wasUp = false;
    const hooks = {
      onUp: async (link: Link) => {
        await this.#up(live, link);
        if (wasUp) this.#record(live, "link.restored", "The link to the keeper is back.");
        wasUp = true;
        live.learn({ linkDown: null, heardAt: link.lastReceivedAt });
        if (live.hasLiveProcess) this.#announceOnceUsable(live);
      },
      onDown: (why: string) => {
        if (live.health.linkDown === null && wasUp) {
          this.#lost += 1;
          live.noteLinkLoss();
          this.#record(live, "link.lost", why);
        }
        live.learn({ linkDown: why });
        this.#events.linkDown.emit(live);
      },
    };
    const link = new PersistentLink(this.#context, instance, hooks, forkExecIds(live.record));
    live.attachLink(link);
    link.open();
  }

  /**
   * Subscribes to the ends of execs before it compares the open execs with the keeper's list, so that no end is missed.
   */
  async #up(live: LiveSandbox, link: Link): Promise<void> {
    const { clock, numbers } = this.#context;
    link.onExecEnd((exec) => this.#events.keeperEndedExec.emit(live, exec));
    link.onExecStart(() => this.#events.keeperStartedExec.emit(live));
    const limit = { ms: numbers.keeperCallMs, what: "comparing execs" };
    await within(clock, limit, (signal) => this.#events.linkUp.run(live, link, signal));
  }

  /** Emits `linkUsable` once `onUp` is done: callers get the link only after that. */
  #announceOnceUsable(live: LiveSandbox): void {
    const { numbers, stopping } = this.#context;
    live.waitForLink(numbers.linkDeadMs, stopping).then(
      (link) => link !== null && this.#events.linkUsable.emit(live),
      () => undefined,
    );
  }

  #record(live: LiveSandbox, type: "link.lost" | "link.restored", message: string): void {
    if (live.record.phase.name !== "running") return;
    const { id: sandboxId, generation } = live.record;
    const at = this.#context.clock.now();
    void recordEvent(this.#context, { at, type, sandboxId, generation, message });
  }
}
