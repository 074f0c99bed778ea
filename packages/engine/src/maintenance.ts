import { causeOf } from "@holdfast/contract";
import type { Sweeps } from "./cleanup/sweeps.ts";
import type { Drives } from "./drives/drives.ts";
import type { Mounts } from "./drives/mounts.ts";
import type { ExecLedger } from "./execs/exec-ledger.ts";
import type { Prover } from "./launch/prover.ts";
import { within } from "./lib/deadline.ts";
import type { Checkpoints } from "./lifecycle/checkpoints.ts";
import type { InstanceAbsence } from "./lifecycle/instance-absence.ts";
import type { Pauses } from "./lifecycle/pause.ts";
import type { Recovery } from "./lifecycle/recovery.ts";
import type { Standby } from "./lifecycle/suspend.ts";
import type { SandboxRegistry } from "./live/sandbox-registry.ts";
import type { Previews } from "./network/previews.ts";
import type { EngineContext } from "./ports/context.ts";
import type { Change } from "./ports/index.ts";
import type { Processes } from "./processes/processes.ts";

interface MaintenanceParts {
  registry: SandboxRegistry;
  prover: Prover;
  pauses: Pauses;
  previews: Previews;
  drives: Drives;
  mounts: Mounts;
  absence: InstanceAbsence;
  standby: Standby;
  sweeps: Sweeps;
  recovery: Recovery;
  checkpoints: Checkpoints;
  ledger: ExecLedger;
  processes: Processes;
}

/**
 * The slow periodic duties of the engine, one round after the other. Every duty repeats work that an event or a caller
 * may have missed. A round starts work on sandboxes without waiting for it, so a sandbox that does not respond delays
 * no other.
 */
export class Maintenance {
  readonly #context: EngineContext;
  readonly #parts: MaintenanceParts;

  constructor(context: EngineContext, parts: MaintenanceParts) {
    this.#context = context;
    this.#parts = parts;
  }

  async run(): Promise<void> {
    const { clock, numbers, stopping } = this.#context;
    while (!stopping.aborted) {
      await clock.sleep(numbers.maintainEveryMs, stopping).catch(() => undefined);
      if (stopping.aborted) return;
      await this.#round();
    }
  }

  async #round(): Promise<void> {
    const { registry, pauses, previews, drives, mounts, standby, sweeps, recovery, checkpoints, ledger } =
      this.#parts;
    this.#reproveDegraded();
    pauses.refreeze(registry.allLive());
    previews.maintain();
    drives.maintain();
    mounts.maintain(registry.allLive());
    this.#wakeForWaitingExecs();
    standby.suspendIdle(registry.allLive());
    // Removes sandboxes past their age. The `age` sweep does the same when it is due; this call only does it sooner.
    void sweeps.conservative();
    recovery.retry();
    checkpoints.tidyAgain();
    await this.#storeActivity();
    ledger.expireQueued(this.#context.clock.now());
    this.#compareExecs();
    this.#cancelOverdueExecs();
  }

  /** Runs new proofs of degraded sandboxes, so that a sandbox that recovered by itself becomes ready again. */
  #reproveDegraded(): void {
    for (const live of this.#parts.registry.allLive()) {
      const isWorthIt = live.link !== null && live.judge().status === "degraded";
      if (isWorthIt) void this.#parts.prover.prove(live);
    }
  }

  #wakeForWaitingExecs(): void {
    for (const live of this.#parts.registry.allLive())
      if (live.record.phase.name === "standby") this.#parts.absence.wakeForWaitingExecs(live);
  }

  /** Stores when sandboxes were last used, in one commit for all, so that the commits of execs stay small. */
  async #storeActivity(): Promise<void> {
    const changes: Change[] = [];
    for (const live of this.#parts.registry.allLive()) {
      const at = live.unstoredActivity();
      if (at === null) continue;
      const { execsStarted } = live.record;
      changes.push({ kind: "sandbox.touch", id: live.id, at, execsStarted });
    }
    if (changes.length === 0) return;
    await this.#context.store.commit({ changes }).catch((error: unknown) => {
      this.#context.log.warn({ cause: causeOf(error) }, "activity could not be stored");
    });
  }

  /**
   * Compares open execs with the lists of their keepers. Sandboxes with processes are left out, because the
   * reconciliation of processes includes the execs.
   */
  #compareExecs(): void {
    const { clock, numbers } = this.#context;
    const { registry, ledger, processes } = this.#parts;
    const limit = { ms: numbers.keeperCallMs, what: "comparing execs" };
    for (const live of registry.allLive()) {
      processes.reconcile(live);
      const link = live.link;
      if (!link || live.openExecs.size === 0 || live.hasLiveProcess) continue;
      // On a failure the next round, or the next link, compares again.
      within(clock, limit, (signal) => ledger.compare(live, link, signal)).catch(() => undefined);
    }
  }

  /** Cancels execs whose keeper did not enforce their timeout. */
  #cancelOverdueExecs(): void {
    const { clock, numbers, log } = this.#context;
    for (const exec of this.#parts.ledger.overdue()) {
      const { record, live } = exec;
      const link = live.link;
      if (!link) continue;
      exec.markOverdue();
      log.warn(
        { sandbox: live.id, exec: record.id },
        "an exec outlived its timeout; cancelling it from outside",
      );
      const limit = { ms: numbers.keeperCallMs, what: "cancelling" };
      // If the request fails, the exec stays overdue, and the next round cancels it again.
      within(clock, limit, (signal) => link.cancelExec(record.id, signal)).catch(() => undefined);
    }
  }
}
