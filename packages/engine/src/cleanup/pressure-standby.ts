import { causeOf, type ErrorCode, isHoldfastError, type SweepItem } from "@holdfast/contract";
import type { Admission } from "../launch/admission.ts";
import type { Standby } from "../lifecycle/suspend.ts";
import type { LiveSandbox } from "../live/live-sandbox.ts";
import type { SandboxRegistry } from "../live/sandbox-registry.ts";
import type { EngineContext } from "../ports/context.ts";
import { standbySupport } from "../ports/index.ts";
import { item, withRequestReason } from "./sweep-report.ts";
import {
  factsOf,
  isMemoryAbove,
  leastRecentlyUsed,
  maySuspend,
  ruleNow,
  type SweepScope,
} from "./sweep-rules.ts";

export interface PressureStandbyParts {
  registry: SandboxRegistry;
  standby: Standby;
  admission: Admission;
}

/**
 * Suspends idle sandboxes to relieve host memory, before any sandbox is removed. Memory usually runs out because owners
 * do not delete their idle sandboxes. Few owners have allowed the removal of their sandboxes, but most idle sandboxes
 * can be suspended.
 */
export class PressureStandby {
  readonly #context: EngineContext;
  readonly #parts: PressureStandbyParts;

  constructor(context: EngineContext, parts: PressureStandbyParts) {
    this.#context = context;
    this.#parts = parts;
  }

  /**
   * Suspends all idle sandboxes on request, if the disk has room for their memory. Leaves out the sandboxes that the
   * same sweep removes.
   */
  async all(dryRun: boolean): Promise<SweepItem[]> {
    if (standbySupport(this.#context.driver).kind === "memory" && !(await this.#hasDisk())) return [];
    const candidates = this.#candidates({ short: true });
    return (await this.#each(candidates, dryRun, async () => true)).map(withRequestReason);
  }

  /**
   * Suspends idle sandboxes while the host is short of memory. Does nothing against a shortage of disk, because standby
   * uses disk. Skips sandboxes whose suspension failed recently.
   */
  async untilRelieved(dryRun: boolean): Promise<SweepItem[]> {
    const isShort = () => this.#isMemoryShort();
    if (!(await isShort())) return [];
    const now = this.#context.clock.now();
    const candidates = this.#candidates({ short: false }).filter((live) => live.standbyBackoff.allows(now));
    return this.#each(candidates, dryRun, dryRun ? async () => true : isShort);
  }

  #candidates(scope: SweepScope): LiveSandbox[] {
    const now = this.#context.clock.now();
    return leastRecentlyUsed(this.#parts.registry.allLive()).filter(
      (live) => live.judge().status === "ready" && this.#isIdle(live) && ruleNow(live, scope, now) === null,
    );
  }

  async #each(
    allLive: readonly LiveSandbox[],
    dryRun: boolean,
    isWanted: () => Promise<boolean>,
  ): Promise<SweepItem[]> {
    const { clock, numbers, stopping } = this.#context;
    const items: SweepItem[] = [];
    const endAt = clock.now() + numbers.pressureStandbyMs;
    const remaining = allLive.values();
    const worker = async () => {
      for (const live of remaining) {
        if (stopping.aborted || clock.now() >= endAt || !(await isWanted())) return;
        items.push(...(dryRun ? [item("idle", live, 1, "would_put_to_standby")] : await this.#one(live)));
      }
    };
    await Promise.all(Array.from({ length: numbers.standbysAtOnce }, worker));
    return items;
  }

  async #one(live: LiveSandbox): Promise<SweepItem[]> {
    const { log } = this.#context;
    try {
      await this.#parts.standby.suspendIf(live, "The host is short of memory, and the sandbox is idle.", () =>
        this.#isIdle(live),
      );
      log.info({ sandbox: live.id }, "suspended an idle sandbox to relieve host memory");
      return [item("idle", live, 1, "put_to_standby")];
    } catch (error) {
      // The sandbox is in use again, or is being deleted. This is not a failure.
      if (isHoldfastError(error) && OVERTAKEN.has(error.code)) return [];
      log.warn({ sandbox: live.id, cause: causeOf(error) }, "failed to suspend an idle sandbox");
      return [{ ...item("idle", live, 1, "failed"), message: causeOf(error).message }];
    }
  }

  #isIdle(live: LiveSandbox): boolean {
    const { clock, driver, numbers } = this.#context;
    const limits = { kind: standbySupport(driver).kind, idleMs: numbers.pressureIdleMs };
    return maySuspend({ ...factsOf(live), now: clock.now() }, limits);
  }

  async #hasDisk(): Promise<boolean> {
    const capacity = await this.#parts.admission.measure().catch(() => null);
    return capacity !== null && capacity.diskFreeBytes > this.#context.numbers.diskReserveBytes;
  }

  async #isMemoryShort(): Promise<boolean> {
    const capacity = await this.#parts.admission.measure().catch(() => null);
    return capacity !== null && isMemoryAbove(capacity, this.#context.numbers.sweepPressureShare);
  }
}

/** Error codes that mean that the sandbox stays awake although nothing failed. */
const OVERTAKEN = new Set<ErrorCode>([
  "sandbox_busy",
  "standby_cancelled",
  "wrong_state",
  "sandbox_gone",
  "sandbox_failed",
]);
