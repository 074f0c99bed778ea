import { type AuditFinding, type AuditReport, causeOf, type SandboxId } from "@holdfast/contract";
import type { Cell } from "./cell.ts";
import { within } from "./clock.ts";
import type { Drives } from "./drives.ts";
import { hasInstance } from "./machine.ts";
import type { Observer } from "./observer.ts";
import type { Orphans } from "./orphans.ts";
import type { Found } from "./ports.ts";
import type { Reaper } from "./reaper.ts";
import type { World } from "./world.ts";

export interface AuditParts {
  cells(): Iterable<Cell>;
  observer: Observer;
  orphans: Orphans;
  reaper: Reaper;
  drives: Drives;
}

/** Longer than any launch takes by its own deadlines. */
const STUCK_AFTER_MS = 60_000;

/**
 * Records compared with reality, both ways. From what carries our marker to the record that must own it, and from every
 * record to what must be there. It observes and then lets the parts that own each duty act: the observer ends what is
 * absent, the reaper stops what lingers, orphans go by their grace. Where the world could not be listed the audit is
 * incomplete, says so, and removes nothing: what was not seen is not known to be absent.
 */
export class Audit {
  readonly #world: World;
  readonly #parts: AuditParts;
  #underWay: Promise<AuditReport> | null = null;
  last: AuditReport | null = null;

  constructor(world: World, parts: AuditParts) {
    this.#world = world;
    this.#parts = parts;
  }

  /** Callers at the same time share one. */
  run(trigger: AuditReport["trigger"]): Promise<AuditReport> {
    this.#underWay ??= this.#run(trigger).finally(() => {
      this.#underWay = null;
    });
    return this.#underWay;
  }

  async #run(trigger: AuditReport["trigger"]): Promise<AuditReport> {
    const { clock } = this.#world;
    const startedAt = clock.now();
    const found = await this.#list();
    const drives = await this.#drives();
    const cells = [...this.#parts.cells()];
    const findings = [
      ...drives.findings,
      ...(found === null ? [] : await this.#parts.orphans.examine(found)),
      ...(await this.#unreadable()),
      ...(await this.#records(cells, found)),
    ];
    const report: AuditReport = {
      at: new Date(startedAt).toISOString(),
      ms: clock.now() - startedAt,
      trigger,
      complete: found !== null && drives.complete,
      records: cells.length + this.#parts.drives.count,
      things: (found?.reduce((sum, { things }) => sum + things.length, 0) ?? 0) + drives.things,
      findings,
    };
    this.last = report;
    await this.#tell(report);
    return report;
  }

  async #list(): Promise<Found[] | null> {
    const { clock, driver, numbers, stopping, log } = this.#world;
    const limit = { ms: numbers.stopAttemptMs, what: "listing", signal: stopping };
    try {
      return await within(clock, limit, (signal) => driver.list(signal));
    } catch (error) {
      log.error({ cause: causeOf(error) }, "what there is could not be listed");
      return null;
    }
  }

  /** What is in a drive is somebody's: one without a record is told of, and removed by whoever says so. */
  async #drives(): Promise<{ complete: boolean; things: number; findings: AuditFinding[] }> {
    const { clock, numbers, stopping, log } = this.#world;
    const limit = { ms: numbers.stopAttemptMs, what: "listing drives", signal: stopping };
    try {
      return {
        complete: true,
        ...(await within(clock, limit, (signal) => this.#parts.drives.audit(signal))),
      };
    } catch (error) {
      log.error({ cause: causeOf(error) }, "drives could not be listed");
      return { complete: false, things: 0, findings: [] };
    }
  }

  async #unreadable(): Promise<AuditFinding[]> {
    const ids = await this.#world.store.unreadable();
    return ids.map((sandboxId) => ({
      kind: "unreadable",
      sandboxId,
      things: [],
      action: "left",
      message:
        "Its record can't be read. What it owns is left alone until it is deleted explicitly, by its id.",
    }));
  }

  async #records(cells: readonly Cell[], found: readonly Found[] | null): Promise<AuditFinding[]> {
    const things = new Map(found?.map((one) => [one.sandboxId, one]));
    const running = cells.filter((cell) => hasInstance(cell.record));
    await this.#parts.observer.look(running);
    const findings = [...running.map((cell) => this.#observed(cell))];
    for (const cell of cells) findings.push(await this.#duty(cell, things.get(cell.id)));
    return findings.filter((finding) => finding !== null);
  }

  /** A record that says running, after it was looked at. */
  #observed(cell: Cell): AuditFinding | null {
    const { driver } = this.#world;
    const { id: sandboxId, phase, instance } = cell.record;
    const about = { sandboxId, things: [] };
    if (!hasInstance(cell.record)) {
      // Put to sleep or deleted since it was looked at: nothing to correct.
      if (phase.name !== "failed" && phase.name !== "queued") return null;
      const message = "It was recorded as running and was not there; its record says so now.";
      return { ...about, kind: "absent", action: "corrected", message };
    }
    const { observation } = cell.health;
    if (observation === null || observation.seen === "unknown") {
      const message = `It could not be observed: ${observation?.why ?? "it was not looked at"}. Nothing is concluded from that.`;
      return { ...about, kind: "unknown", action: "left", message };
    }
    if (instance !== null && instance.keeperVersion !== driver.keeperVersion) {
      const message = `Its keeper has version ${instance.keeperVersion}, new ones have ${driver.keeperVersion}. It goes on as it is and is replaced with its sandbox.`;
      return { ...about, kind: "older_version", action: "left", message };
    }
    return null;
  }

  /** A record with a duty that nobody may be working on. Setting the same duty going twice changes nothing. */
  async #duty(cell: Cell, found: Found | undefined): Promise<AuditFinding | null> {
    const { clock } = this.#world;
    const { id: sandboxId, phase, lease } = cell.record;
    const about = { sandboxId, things: found?.things ?? [] };
    if (lease.state === "quarantined") {
      const message = "Its lease can't be read. Nothing is done to it until it is deleted explicitly.";
      return { ...about, kind: "quarantined", action: "left", message };
    }
    if (lease.state === "exhausted" || lease.state === "stop_needed") {
      this.#parts.reaper.tend(cell);
      if (lease.state === "stop_needed") return null;
      const nextAt = new Date(lease.nextAttemptAt).toISOString();
      const message = `All stop attempts failed: ${lease.lastError ?? "unknown why"}. It is tried again.`;
      return { ...about, kind: "exhausted", action: "waits", message, nextAt };
    }
    if ((phase.name === "failed" || phase.name === "standby") && lease.state === "none" && found?.alive)
      return this.#stopLingering(cell, about);
    if (phase.name === "launching" && clock.now() > phase.deadline + STUCK_AFTER_MS) {
      const cause = { code: "deadline", message: "The launch was never finished." };
      await cell.decide({ type: "launch_failed", cause });
      this.#parts.reaper.tend(cell);
      return { ...about, kind: "stuck_launch", action: "corrected", message: cause.message };
    }
    return null;
  }

  async #stopLingering(cell: Cell, about: Pick<AuditFinding, "sandboxId" | "things">): Promise<AuditFinding> {
    await cell.decide({ type: "lingered" });
    this.#parts.reaper.tend(cell);
    const message =
      "Processes of it are there though its record says that none are left; they are being ended.";
    return { ...about, kind: "lingering", action: "corrected", message };
  }

  async #tell(report: AuditReport): Promise<void> {
    const { clock, store, log } = this.#world;
    const { records, things, findings, complete, trigger } = report;
    const message = `An audit compared ${records} records with ${things} things and found ${findings.length} differences.`;
    log.info({ trigger, records, things, complete, findings: findings.length }, message);
    const data = { ...report, findings: findings.slice(0, 100) };
    await store
      .commit({ changes: [], events: [{ at: clock.now(), type: "audit.done", message, data }] })
      .catch((error: unknown) => log.warn({ cause: causeOf(error) }, "an audit could not be told of"));
  }
}

/** What a caller who asks for a sandbox without a readable record is told. */
export const pendingMessage = (id: SandboxId, nextAttemptAt: number | null): string =>
  nextAttemptAt === null
    ? `The record of ${id} can't be read. What it owns is kept until it is deleted by this id.`
    : `${id} has no record any more; what is left of it is removed at ${new Date(nextAttemptAt).toISOString()} if it is still there.`;
