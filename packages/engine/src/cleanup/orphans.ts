import { type AuditFinding, causeOf, type SandboxId } from "@holdfast/contract";
import { recordEvent } from "../events/record-event.ts";
import type { ExecLedger } from "../execs/exec-ledger.ts";
import { within } from "../lib/deadline.ts";
import { iso } from "../lib/format.ts";
import { mapAtOnce } from "../lib/map-at-once.ts";
import type { OrphanSightings } from "../live/orphan-sightings.ts";
import type { SandboxRegistry } from "../live/sandbox-registry.ts";
import type { EngineContext } from "../ports/context.ts";
import type { Found } from "../ports/index.ts";

interface OrphanParts {
  registry: SandboxRegistry;
  sightings: OrphanSightings;
  ledger: ExecLedger;
}

const REMOVED_AT_ONCE = 8;

/**
 * Finds resources on the host that carry our marker but belong to no record. An orphan is removed only after it was
 * seen twice without a record, at least `orphanGraceMs` apart. Otherwise a running sandbox would be removed if its
 * record were missing from the database for a moment.
 */
export class Orphans {
  readonly #context: EngineContext;
  readonly #parts: OrphanParts;

  constructor(context: EngineContext, parts: OrphanParts) {
    this.#context = context;
    this.#parts = parts;
  }

  get count(): number {
    return this.#parts.sightings.count;
  }

  async run(): Promise<void> {
    const { clock, numbers, stopping, log } = this.#context;
    while (!stopping.aborted) {
      await this.check().catch((error: unknown) =>
        log.error({ cause: causeOf(error) }, "the orphan check failed"),
      );
      await clock.sleep(numbers.orphanCheckEveryMs, stopping).catch(() => undefined);
    }
  }

  async check(): Promise<void> {
    const { clock, driver, numbers } = this.#context;
    const limit = { ms: numbers.stopAttemptMs, what: "listing", signal: this.#context.stopping };
    await this.examine(await within(clock, limit, (signal) => driver.list(signal)));
  }

  /** Returns the orphans among the found resources, with the action taken for each. */
  async examine(found: readonly Found[]): Promise<AuditFinding[]> {
    const unowned: Found[] = [];
    for (const one of found) if (!(await this.#isOwned(one.sandboxId))) unowned.push(one);
    this.#parts.sightings.retain(new Set(unowned.map((one) => one.sandboxId)));
    return mapAtOnce(unowned, REMOVED_AT_ONCE, (one) => this.#consider(one));
  }

  async #consider(orphan: Found): Promise<AuditFinding> {
    const { clock, numbers, log } = this.#context;
    const { sandboxId, things } = orphan;
    const now = clock.now();
    const since = this.#parts.sightings.firstSeenAt(sandboxId);
    const finding = { kind: "orphan", sandboxId, things } as const;
    if (since === undefined || now - since < numbers.orphanGraceMs) {
      this.#parts.sightings.note(sandboxId, now);
      const message =
        "Orphaned resources found; they are removed after the grace period if no record owns them by then.";
      if (since === undefined) await this.#record("orphan.found", orphan, message);
      const nextAt = iso((since ?? now) + numbers.orphanGraceMs);
      return { ...finding, action: "waits", message, nextAt };
    }
    try {
      await this.remove(orphan);
      return {
        ...finding,
        action: "removed",
        message: "The resources had no owner after the grace period.",
      };
    } catch (error) {
      log.error({ sandbox: sandboxId, cause: causeOf(error) }, "failed to remove an orphan");
      return { ...finding, action: "failed", message: causeOf(error).message };
    }
  }

  /** Stops the orphan, observes its absence, and deletes its files. */
  async remove(orphan: Found): Promise<void> {
    const { clock, driver, numbers } = this.#context;
    const limit = { ms: numbers.stopAttemptMs, what: "removing an orphan", signal: this.#context.stopping };
    await within(clock, limit, async (signal) => {
      const seen = await driver.stop(orphan.sandboxId, { graceMs: 0 }, signal);
      if (seen.seen !== "absent") throw new Error(`the orphan is ${seen.seen} after the stop`);
      await this.#abandonExecs(orphan.sandboxId, signal);
      await driver.destroy(orphan.sandboxId, signal);
    });
    this.#parts.sightings.forget(orphan.sandboxId);
    await this.#record("orphan.removed", orphan, "Orphaned resources removed.");
  }

  /** A sandbox whose record can't be read still owns all resources with its id. */
  async #isOwned(id: SandboxId): Promise<boolean> {
    if (this.#parts.registry.live(id) !== undefined) return true;
    try {
      const record = await this.#context.store.sandbox(id);
      return record !== null && record.phase.name !== "gone";
    } catch (error) {
      this.#context.log.error(
        { sandbox: id, cause: causeOf(error) },
        "a record could not be read; what it owns is left alone",
      );
      return true;
    }
  }

  /** Ends the open execs of an orphan, which can no longer report an outcome, and archives their journals. */
  async #abandonExecs(id: SandboxId, signal: AbortSignal): Promise<void> {
    const { store, journals, log } = this.#context;
    for (const record of await store.openExecs())
      if (record.sandboxId === id) await this.#parts.ledger.abandon(record);
    if ((await store.execs(id, { limit: 1 })).length === 0) return;
    await journals.archive(id, signal).catch((error: unknown) => {
      log.error({ sandbox: id, cause: causeOf(error) }, "journals could not be archived");
    });
  }

  async #record(type: "orphan.found" | "orphan.removed", orphan: Found, message: string): Promise<void> {
    const { clock, log } = this.#context;
    log.warn({ sandbox: orphan.sandboxId, things: orphan.things }, message);
    const event = {
      at: clock.now(),
      type,
      sandboxId: orphan.sandboxId,
      message,
      data: { things: orphan.things },
    };
    // The orphan is removed even if the event can't be stored.
    await recordEvent(this.#context, event);
  }
}
