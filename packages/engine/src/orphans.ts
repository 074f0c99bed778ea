import { causeOf, type SandboxId } from "@holdfast/contract";
import { within } from "./clock.ts";
import type { Found } from "./ports.ts";
import type { World } from "./world.ts";

/**
 * Finds what carries our marker and no record owns. It is removed only after it was seen twice, at least the grace
 * apart, and still has no record: a database that is briefly behind reality must not cost a running sandbox.
 */
export class Orphans {
  readonly #world: World;
  readonly #owned: (id: SandboxId) => Promise<boolean>;
  readonly #firstSeen = new Map<SandboxId, number>();

  constructor(world: World, owned: (id: SandboxId) => Promise<boolean>) {
    this.#world = world;
    this.#owned = owned;
  }

  get count(): number {
    return this.#firstSeen.size;
  }

  async run(): Promise<void> {
    const { clock, numbers, stopping, log } = this.#world;
    while (!stopping.aborted) {
      await this.check().catch((error: unknown) =>
        log.error({ cause: causeOf(error) }, "the orphan check failed"),
      );
      await clock.sleep(numbers.orphanCheckEveryMs, stopping).catch(() => undefined);
    }
  }

  async check(): Promise<void> {
    const { clock, driver, numbers } = this.#world;
    const limit = { ms: numbers.stopAttemptMs, what: "listing", signal: this.#world.stopping };
    const found = await within(clock, limit, (signal) => driver.list(signal));
    const unowned: Found[] = [];
    for (const one of found) if (!(await this.#owned(one.sandboxId))) unowned.push(one);
    const ids = new Set(unowned.map((one) => one.sandboxId));
    for (const id of [...this.#firstSeen.keys()]) if (!ids.has(id)) this.#firstSeen.delete(id);
    for (const one of unowned) await this.#consider(one);
  }

  async #consider(orphan: Found): Promise<void> {
    const { clock, numbers, log } = this.#world;
    const now = clock.now();
    const since = this.#firstSeen.get(orphan.sandboxId);
    if (since === undefined) {
      this.#firstSeen.set(orphan.sandboxId, now);
      await this.#say(
        "orphan.found",
        orphan,
        "Something that no record owns was found; it is removed if it is still unowned after the grace.",
      );
      return;
    }
    if (now - since < numbers.orphanGraceMs) return;
    try {
      await this.#remove(orphan);
    } catch (error) {
      log.error({ sandbox: orphan.sandboxId, cause: causeOf(error) }, "an orphan could not be removed");
    }
  }

  async #remove(orphan: Found): Promise<void> {
    const { clock, driver, numbers } = this.#world;
    const limit = { ms: numbers.stopAttemptMs, what: "removing an orphan", signal: this.#world.stopping };
    await within(clock, limit, async (signal) => {
      const seen = await driver.stop(orphan.sandboxId, { graceMs: 0 }, signal);
      if (seen.seen !== "absent") throw new Error(`it is ${seen.seen} after the stop`);
      await driver.destroy(orphan.sandboxId, signal);
    });
    this.#firstSeen.delete(orphan.sandboxId);
    await this.#say("orphan.removed", orphan, "Something that no record owned was removed.");
  }

  async #say(type: "orphan.found" | "orphan.removed", orphan: Found, message: string): Promise<void> {
    const { clock, store, log } = this.#world;
    log.warn({ sandbox: orphan.sandboxId, things: orphan.things }, message);
    const event = {
      at: clock.now(),
      type,
      sandboxId: orphan.sandboxId,
      message,
      data: { things: orphan.things },
    };
    await store.commit({ changes: [], events: [event] });
  }
}
