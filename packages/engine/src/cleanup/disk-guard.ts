import { type Cause, causeOf } from "@holdfast/contract";
import { recordEvent } from "../events/record-event.ts";
import type { Admission } from "../launch/admission.ts";
import { raced, within } from "../lib/deadline.ts";
import { mb } from "../lib/format.ts";
import type { LiveSandbox } from "../live/live-sandbox.ts";
import type { SandboxRegistry } from "../live/sandbox-registry.ts";
import type { EngineContext } from "../ports/context.ts";
import type { Capacity } from "../ports/index.ts";
import { requireCapability } from "../ports/index.ts";
import type { Sweeps } from "./sweeps.ts";

const SAMPLE_MS = 1_000;
const CALL_MS = 10_000;

interface GuardParts {
  registry: SandboxRegistry;
  admission: Admission;
  sweeps: Sweeps;
}

/**
 * Prevents one sandbox from filling the host's disk. The reserve is the free space that the disk should always have.
 * While less is free, admission rejects new sandboxes, and the guard acts on running ones: first it removes stale
 * sandboxes; if the disk still runs out, it freezes the sandbox that writes fastest and records an event that names it.
 * The frozen sandbox loses nothing: it is thawed when the reserve is free again, and can be deleted meanwhile. The
 * freeze is not recorded. A sandbox that an earlier server froze is thawed by the healing ladder, which does so only
 * when the disk is no longer low.
 */
export class DiskGuard {
  readonly #context: EngineContext;
  readonly #parts: GuardParts;
  #isLow = false;
  #hasMeasured = false;

  constructor(context: EngineContext, parts: GuardParts) {
    this.#context = context;
    this.#parts = parts;
  }

  /**
   * Whether the disk has less free space than its reserve. Also true before the first measurement, because the free
   * space is not known until then.
   */
  get isLow(): boolean {
    return this.#isLow || !this.#hasMeasured;
  }

  async run(): Promise<void> {
    const { clock, numbers, stopping, log } = this.#context;
    while (!stopping.aborted) {
      await this.check().catch((error: unknown) => {
        if (!stopping.aborted) log.warn({ cause: causeOf(error) }, "the disk check failed");
      });
      await clock.sleep(numbers.diskGuardEveryMs, stopping).catch(() => undefined);
    }
  }

  async check(): Promise<void> {
    const { diskReserveBytes, diskFreezeBytes } = this.#context.numbers;
    const capacity = await this.#parts.admission.measure();
    this.#hasMeasured = true;
    if (capacity.diskFreeBytes >= diskReserveBytes) return this.#relieve(capacity);
    if (!this.#isLow) {
      this.#isLow = true;
      await this.#record(
        "disk.low",
        `The disk has ${mb(capacity.diskFreeBytes)} MB free, which is below its reserve.`,
      );
      // This call is not awaited, because the disk keeps filling while sandboxes are removed and one removal may take
      // long.
      void this.#parts.sweeps.conservative();
    }
    if (capacity.diskFreeBytes < diskFreezeBytes) await this.#freezeFastest();
  }

  async #freezeFastest(): Promise<void> {
    const { clock, stopping, numbers } = this.#context;
    const running = [...this.#parts.registry.allLive()].filter(
      ({ record, health }) => record.phase.name === "running" && health.frozenFor === null,
    );
    const before = await this.#written(running);
    await clock.sleep(SAMPLE_MS, stopping);
    const after = await this.#written(running);
    const rates = running.map((live) => ({
      live,
      rate: ((after.get(live.id) ?? 0) - (before.get(live.id) ?? 0)) / (SAMPLE_MS / 1_000),
    }));
    const fastest = rates.sort((a, b) => b.rate - a.rate)[0];
    if (fastest === undefined || fastest.rate < numbers.diskFreezeRateBytes) return;
    // The sandbox may have been suspended or woken while its writes were measured.
    if (fastest.live.record.phase.name !== "running") return;
    await this.#freeze(fastest.live, fastest.rate);
  }

  async #written(allLive: readonly LiveSandbox[]) {
    const { clock, driver, stopping } = this.#context;
    const limit = { ms: CALL_MS, what: "measuring writes", signal: stopping };
    const { outsideView } = driver.capabilities;
    if (outsideView === null) return new Map<LiveSandbox["id"], number>();
    return within(clock, limit, (signal) =>
      outsideView.written(
        allLive.map(({ id }) => id),
        signal,
      ),
    );
  }

  async #freeze(live: LiveSandbox, rate: number): Promise<void> {
    const { clock, driver, stopping } = this.#context;
    const message = `The sandbox was frozen: it wrote ${mb(rate)} MB a second while the disk ran out. It is thawed when the disk has its reserve again.`;
    const cause: Cause = { code: "disk_filler", message };
    await within(clock, { ms: CALL_MS, what: "freezing", signal: stopping }, async (signal) => {
      // A healing step in progress may include a thaw, so the freeze waits for its end.
      await raced(live.healing, signal);
      await requireCapability(driver, "freezer").freeze(live.id, signal);
    });
    live.learn({ frozenFor: cause });
    await this.#record("sandbox.frozen", message, live);
  }

  /** Thaws the frozen sandboxes once the reserve is free again. */
  async #relieve(capacity: Capacity): Promise<void> {
    const frozen = [...this.#parts.registry.allLive()].filter(
      ({ record, health }) => record.phase.name === "running" && health.frozenFor !== null,
    );
    // All at once: a sandbox that can't be thawed must not delay the others.
    await Promise.all(frozen.map((live) => this.#thaw(live)));
    if (!this.#isLow) return;
    this.#isLow = false;
    await this.#record("disk.recovered", `The disk has ${mb(capacity.diskFreeBytes)} MB free again.`);
  }

  /** Never rejects; the next check thaws a sandbox that could not be thawed. */
  async #thaw(live: LiveSandbox): Promise<void> {
    const { clock, driver, stopping, log } = this.#context;
    try {
      await within(clock, { ms: CALL_MS, what: "thawing", signal: stopping }, (signal) =>
        requireCapability(driver, "freezer").thaw(live.id, signal),
      );
      live.learn({ frozenFor: null });
      log.info({ sandbox: live.id }, "thawed a frozen sandbox");
    } catch (error) {
      log.warn({ sandbox: live.id, cause: causeOf(error) }, "failed to thaw a sandbox");
    }
  }

  async #record(
    type: "disk.low" | "disk.recovered" | "sandbox.frozen",
    message: string,
    live?: LiveSandbox,
  ): Promise<void> {
    const { clock, log } = this.#context;
    log.warn({ sandbox: live?.id }, message);
    const about = live === undefined ? {} : { sandboxId: live.id, generation: live.record.generation };
    await recordEvent(this.#context, { at: clock.now(), type, message, ...about });
  }
}
