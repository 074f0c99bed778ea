import { type AuditFinding, type AuditReport, causeOf } from "@holdfast/contract";
import type { Drives } from "../drives/drives.ts";
import { recordEvent } from "../events/record-event.ts";
import type { Observer } from "../healing/observer.ts";
import type { Reaper } from "../launch/reaper.ts";
import { within } from "../lib/deadline.ts";
import { iso } from "../lib/format.ts";
import type { LiveSandbox } from "../live/live-sandbox.ts";
import type { SandboxRegistry } from "../live/sandbox-registry.ts";
import { hasInstance } from "../model/sandbox-facts.ts";
import type { EngineContext } from "../ports/context.ts";
import type { Found } from "../ports/index.ts";
import type { Orphans } from "./orphans.ts";

interface AuditParts {
  registry: SandboxRegistry;
  observer: Observer;
  orphans: Orphans;
  reaper: Reaper;
  drives: Drives;
}

/** A launch that runs this much longer than its deadline is stuck. */
const STUCK_AFTER_MS = 60_000;

/**
 * Compares the records with the host in both directions: from everything on the host that carries our marker to the
 * record that must own it, and from every record to the instance that must exist. The audit itself only observes; other
 * parts act on what it finds: the observer handles absent instances, the reaper stops instances that should have ended,
 * and `Orphans` removes orphans when their grace period has passed. If the host could not be listed, the audit is
 * incomplete, reports that, and nothing is removed.
 */
export class Audit {
  readonly #context: EngineContext;
  readonly #parts: AuditParts;
  #inProgress: Promise<AuditReport> | null = null;
  last: AuditReport | null = null;

  constructor(context: EngineContext, parts: AuditParts) {
    this.#context = context;
    this.#parts = parts;
  }

  /** Runs an audit; concurrent callers share one. */
  run(trigger: AuditReport["trigger"]): Promise<AuditReport> {
    this.#inProgress ??= this.#run(trigger).finally(() => {
      this.#inProgress = null;
    });
    return this.#inProgress;
  }

  async #run(trigger: AuditReport["trigger"]): Promise<AuditReport> {
    const { clock } = this.#context;
    const startedAt = clock.now();
    const found = await this.#list();
    const drives = await this.#drives();
    const allLive = [...this.#parts.registry.allLive()];
    const findings = [
      ...drives.findings,
      ...(found === null ? [] : await this.#parts.orphans.examine(found)),
      ...(await this.#unreadable()),
      ...(await this.#records(allLive, found)),
    ];
    const report: AuditReport = {
      at: iso(startedAt),
      ms: clock.now() - startedAt,
      trigger,
      complete: found !== null && drives.complete,
      records: allLive.length + this.#parts.drives.count,
      things: (found?.reduce((sum, { things }) => sum + things.length, 0) ?? 0) + drives.things,
      findings,
    };
    this.last = report;
    await this.#record(report);
    return report;
  }

  async #list(): Promise<Found[] | null> {
    const { clock, driver, numbers, stopping, log } = this.#context;
    const limit = { ms: numbers.stopAttemptMs, what: "listing", signal: stopping };
    try {
      return await within(clock, limit, (signal) => driver.list(signal));
    } catch (error) {
      log.error({ cause: causeOf(error) }, "the audit failed to list the resources on the host");
      return null;
    }
  }

  /**
   * Audits drives. A drive without a record is only reported, because its data may be needed; it is removed only on
   * request.
   */
  async #drives(): Promise<{ complete: boolean; things: number; findings: AuditFinding[] }> {
    const { clock, numbers, stopping, log } = this.#context;
    const limit = { ms: numbers.stopAttemptMs, what: "listing drives", signal: stopping };
    try {
      return {
        complete: true,
        ...(await within(clock, limit, (signal) => this.#parts.drives.audit(signal))),
      };
    } catch (error) {
      log.error({ cause: causeOf(error) }, "the audit failed to list the drives");
      return { complete: false, things: 0, findings: [] };
    }
  }

  async #unreadable(): Promise<AuditFinding[]> {
    const ids = await this.#context.store.unreadable();
    return ids.map((sandboxId) => ({
      kind: "unreadable",
      sandboxId,
      things: [],
      action: "left",
      message:
        "The record of the sandbox can't be read. Its resources are left alone until it is deleted by its id.",
    }));
  }

  async #records(allLive: readonly LiveSandbox[], found: readonly Found[] | null): Promise<AuditFinding[]> {
    const things = new Map(found?.map((one) => [one.sandboxId, one]));
    const running = allLive.filter((live) => hasInstance(live.record));
    await this.#parts.observer.observe(running);
    const findings = [...running.map((live) => this.#observed(live))];
    for (const live of allLive) findings.push(await this.#duty(live, things.get(live.id)));
    return findings.filter((finding) => finding !== null);
  }

  /** Checks the record of a sandbox in a running phase against a fresh observation. */
  #observed(live: LiveSandbox): AuditFinding | null {
    const { driver } = this.#context;
    const { id: sandboxId, phase, instance } = live.record;
    const about = { sandboxId, things: [] };
    if (!hasInstance(live.record)) {
      // In any other phase, the sandbox was suspended or deleted after the observation, so there is nothing to correct.
      if (phase.name !== "failed" && phase.name !== "queued") return null;
      const message = "The sandbox was recorded as running but was absent; its record was corrected.";
      return { ...about, kind: "absent", action: "corrected", message };
    }
    const { observation } = live.health;
    if (observation === null || observation.seen === "unknown") {
      const message = `The sandbox could not be observed: ${observation?.why ?? "no observation was made"}. It is left alone.`;
      return { ...about, kind: "unknown", action: "left", message };
    }
    if (instance !== null && instance.keeperVersion !== driver.keeperVersion) {
      const message = `Its keeper has version ${instance.keeperVersion}; new sandboxes get ${driver.keeperVersion}. The keeper keeps running and is replaced with its sandbox.`;
      return { ...about, kind: "older_version", action: "left", message };
    }
    return null;
  }

  /** Resumes work that is due according to the record and may have stalled. Repeated calls have no further effect. */
  async #duty(live: LiveSandbox, found: Found | undefined): Promise<AuditFinding | null> {
    const { clock } = this.#context;
    const { id: sandboxId, phase, lease } = live.record;
    const about = { sandboxId, things: found?.things ?? [] };
    if (lease.state === "quarantined") {
      const message = "The lease of the sandbox can't be read. It is left alone until it is deleted.";
      return { ...about, kind: "quarantined", action: "left", message };
    }
    if (lease.state === "exhausted" || lease.state === "stop_needed") {
      this.#parts.reaper.reap(live);
      if (lease.state === "stop_needed") return null;
      const nextAt = iso(lease.nextAttemptAt);
      const message = `All stop attempts failed: ${lease.lastError ?? "cause unknown"}. Attempts continue.`;
      return { ...about, kind: "exhausted", action: "waits", message, nextAt };
    }
    if ((phase.name === "failed" || phase.name === "standby") && lease.state === "none" && found?.alive)
      return this.#stopLingering(live, about);
    if (phase.name === "launching" && clock.now() > phase.deadline + STUCK_AFTER_MS) {
      const cause = { code: "deadline", message: "The launch did not finish." };
      await live.decide({ type: "launch_failed", cause });
      this.#parts.reaper.reap(live);
      return { ...about, kind: "stuck_launch", action: "corrected", message: cause.message };
    }
    return null;
  }

  async #stopLingering(
    live: LiveSandbox,
    about: Pick<AuditFinding, "sandboxId" | "things">,
  ): Promise<AuditFinding> {
    await live.decide({ type: "lingered" });
    this.#parts.reaper.reap(live);
    const message =
      "Processes of the sandbox are running although its record says that none are left; they are being ended.";
    return { ...about, kind: "lingering", action: "corrected", message };
  }

  async #record(report: AuditReport): Promise<void> {
    const { clock, log } = this.#context;
    const { records, things, findings, complete, trigger } = report;
    const message = `Audit finished: compared ${records} records with ${things} resources and found ${findings.length} differences.`;
    log.info({ trigger, records, things, complete, findings: findings.length }, message);
    const data = { ...report, findings: findings.slice(0, 100) };
    await recordEvent(this.#context, { at: clock.now(), type: "audit.done", message, data });
  }
}
