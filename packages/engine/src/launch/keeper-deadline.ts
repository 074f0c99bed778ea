import { causeOf } from "@holdfast/contract";
import { within } from "../lib/deadline.ts";
import type { EngineEvents } from "../live/engine-events.ts";
import type { LiveSandbox } from "../live/live-sandbox.ts";
import { expiryOf } from "../model/sandbox-facts.ts";
import type { EngineContext } from "../ports/context.ts";
import type { Link } from "../ports/index.ts";

/**
 * Sends each keeper the end of its sandbox's TTL. A running server deletes the sandbox at that time. If no server runs,
 * the keeper ends the sandbox itself, `keeperExpiryGraceMs` after the end of the TTL. The next server finds the
 * instance absent and completes the delete. While a link is up, the keeper does not end the sandbox, because a server
 * is responsible for it. Keepers of older versions have no deadline.
 */
export class KeeperDeadline {
  readonly #context: EngineContext;

  constructor(context: EngineContext, events: EngineEvents) {
    this.#context = context;
    events.linkUp.subscribe((live, link, signal) => this.#send(live, link, signal));
  }

  /** Sends a changed TTL. If the link is lost meanwhile, the next link sends it. */
  async refresh(live: LiveSandbox): Promise<void> {
    const { clock, numbers, log, stopping } = this.#context;
    const link = live.link;
    if (!link) return;
    const limit = { ms: numbers.keeperCallMs, what: "sending the deadline", signal: stopping };
    try {
      await within(clock, limit, (signal) => this.#send(live, link, signal));
    } catch (error) {
      log.debug({ sandbox: live.id, cause: causeOf(error) }, "the keeper did not get its new deadline");
    }
  }

  #send({ record }: LiveSandbox, link: Link, signal: AbortSignal): Promise<void> {
    const { clock, numbers } = this.#context;
    const expiresAt = expiryOf(record);
    const remainingMs =
      expiresAt === null ? null : Math.max(1, expiresAt - clock.now() + numbers.keeperExpiryGraceMs);
    return link.setDeadline(remainingMs, signal);
  }
}
