import { type AuditFinding, causeOf, type SandboxId } from "@holdfast/contract";
import { within } from "./clock.ts";
import type { Found } from "./ports.ts";
import type { World } from "./world.ts";

export interface OrphanParts {
  owned(id: SandboxId): Promise<boolean>;
  /** Its absence was observed, and its files are still there. */
  released(id: SandboxId, signal: AbortSignal): Promise<void>;
}

/**
 * Finds what carries our marker and no record owns. It is removed only after it was seen twice, at least the grace
 * apart, and still has no record: a database that is briefly behind reality must not cost a running sandbox.
 */
export class Orphans {
  readonly #world: World;
  readonly #parts: OrphanParts;
  readonly #firstSeen = new Map<SandboxId, number>();

  constructor(world: World, parts: OrphanParts) {
    this.#world = world;
    this.#parts = parts;
  }

  get count(): number {
    return this.#firstSeen.size;
  }

  /** When something that has no record is next acted upon; null where nothing of the kind is known. */
  nextAttemptAt(id: SandboxId): number | null {
    const since = this.#firstSeen.get(id);
    return since === undefined ? null : since + this.#world.numbers.orphanGraceMs;
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
    await this.examine(await within(clock, limit, (signal) => driver.list(signal)));
  }

  /** What of all that was found has no owner, and what was done about it. */
  async examine(found: readonly Found[]): Promise<AuditFinding[]> {
    const unowned: Found[] = [];
    for (const one of found) if (!(await this.#parts.owned(one.sandboxId))) unowned.push(one);
    const ids = new Set(unowned.map((one) => one.sandboxId));
    for (const id of [...this.#firstSeen.keys()]) if (!ids.has(id)) this.#firstSeen.delete(id);
    const findings: AuditFinding[] = [];
    for (const one of unowned) findings.push(await this.#consider(one));
    return findings;
  }

  async #consider(orphan: Found): Promise<AuditFinding> {
    const { clock, numbers, log } = this.#world;
    const { sandboxId, things } = orphan;
    const now = clock.now();
    const since = this.#firstSeen.get(sandboxId);
    const finding = { kind: "orphan", sandboxId, things } as const;
    if (since === undefined || now - since < numbers.orphanGraceMs) {
      this.#firstSeen.set(sandboxId, since ?? now);
      const message =
        "Something that no record owns was found; it is removed if it is still unowned after the grace.";
      if (since === undefined) await this.#say("orphan.found", orphan, message);
      const nextAt = new Date((since ?? now) + numbers.orphanGraceMs).toISOString();
      return { ...finding, action: "waits", message, nextAt };
    }
    try {
      await this.remove(orphan);
      return {
        ...finding,
        action: "removed",
        message: "It was seen again past the grace, without an owner.",
      };
    } catch (error) {
      log.error({ sandbox: sandboxId, cause: causeOf(error) }, "an orphan could not be removed");
      return { ...finding, action: "failed", message: causeOf(error).message };
    }
  }

  /** Ends and removes it now, observed. */
  async remove(orphan: Found): Promise<void> {
    const { clock, driver, numbers } = this.#world;
    const limit = { ms: numbers.stopAttemptMs, what: "removing an orphan", signal: this.#world.stopping };
    await within(clock, limit, async (signal) => {
      const seen = await driver.stop(orphan.sandboxId, { graceMs: 0 }, signal);
      if (seen.seen !== "absent") throw new Error(`it is ${seen.seen} after the stop`);
      await this.#parts.released(orphan.sandboxId, signal);
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
    // What can't be told of is found and removed all the same.
    await store
      .commit({ changes: [], events: [event] })
      .catch((error: unknown) => log.error({ cause: causeOf(error) }, "an event could not be stored"));
  }
}
