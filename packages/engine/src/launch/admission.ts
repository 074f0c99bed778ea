import { type Cause, causeOf, HoldfastError, type Numbers, type Resources } from "@holdfast/contract";
import { recordEvent } from "../events/record-event.ts";
import { within } from "../lib/deadline.ts";
import { mb } from "../lib/format.ts";
import type { EngineEvents } from "../live/engine-events.ts";
import type { SandboxRegistry } from "../live/sandbox-registry.ts";
import { errorOf, rootMessage } from "../model/keeper-errors.ts";
import type { EngineContext } from "../ports/context.ts";
import type { Capacity } from "../ports/index.ts";
import type { SandboxRecord } from "../ports/records.ts";
import {
  BREAKER_CLOSED,
  type BreakerInput,
  type BreakerState,
  isSuspended,
  nextBreaker,
} from "./launch-breaker.ts";

/** Returns why the host has no room for another sandbox; null if the host has room. */
export function shortageOf(
  capacity: Capacity,
  numbers: Pick<Numbers, "diskReserveBytes" | "memoryReserveBytes">,
): { code: "disk_full" | "low_memory"; message: string } | null {
  const { diskFreeBytes, memoryFreeBytes } = capacity;
  const { diskReserveBytes, memoryReserveBytes } = numbers;
  if (diskFreeBytes < diskReserveBytes) {
    const message = `The disk has ${mb(diskFreeBytes)} MB free; ${mb(diskReserveBytes)} MB are kept in reserve.`;
    return { code: "disk_full", message };
  }
  if (memoryFreeBytes < memoryReserveBytes) {
    const message = `The host has ${mb(memoryFreeBytes)} MB of memory free; ${mb(memoryReserveBytes)} MB are kept in reserve.`;
    return { code: "low_memory", message };
  }
  return null;
}

/** Returns the requested limits that exceed what the host has; null if none does. */
export function oversizeOf(
  { cpus, memoryTotalBytes }: Pick<Capacity, "cpus" | "memoryTotalBytes">,
  asked: Partial<Resources>,
): string | null {
  const parts: string[] = [];
  if ((asked.memoryMb ?? 0) * 1_048_576 > memoryTotalBytes)
    parts.push(`memoryMb is ${asked.memoryMb}, but this host has ${mb(memoryTotalBytes)} MB of memory`);
  if ((asked.cpus ?? 0) > cpus) parts.push(`cpus is ${asked.cpus}, but this host has ${cpus}`);
  return parts.length === 0 ? null : `${parts.join("; ")}.`;
}

/**
 * Whether a sandbox counts against the limits on the number of sandboxes. Every sandbox does, except a failed one
 * without an instance.
 */
export const takesPlace = ({ phase, lease }: SandboxRecord): boolean =>
  phase.name !== "failed" || lease.state !== "none";

/** Whether more than the given share of disk or memory is in use. */
export function isAbove(capacity: Capacity, share: number): boolean {
  const { diskFreeBytes, diskTotalBytes, memoryFreeBytes, memoryTotalBytes } = capacity;
  return diskFreeBytes < diskTotalBytes * (1 - share) || memoryFreeBytes < memoryTotalBytes * (1 - share);
}

/**
 * Decides which sandboxes may be launched, before anything is created. It first checks the limits on the number of
 * sandboxes, because that costs nothing, then the circuit breaker of launches, and then the free disk and memory of the
 * host. If the host is short of room, stale sandboxes are removed (only those that a sweep would remove anyway), and
 * the host is measured once more. A host that can't be measured admits no sandbox: a guess might fill its disk.
 */
export class Admission {
  readonly #context: EngineContext;
  readonly #registry: SandboxRegistry;
  readonly #events: EngineEvents;
  #breaker: BreakerState = BREAKER_CLOSED;
  #cleaning: Promise<unknown> | null = null;
  /** The last measurement. */
  capacity: Capacity | null = null;

  constructor(context: EngineContext, registry: SandboxRegistry, events: EngineEvents) {
    this.#context = context;
    this.#registry = registry;
    this.#events = events;
  }

  get launches(): BreakerState {
    return this.#breaker;
  }

  async admit(owner: string | null): Promise<void> {
    this.checkCaps(owner);
    this.checkLaunches();
    let shortage = shortageOf(await this.#measureOrRefuse(), this.#context.numbers);
    if (shortage !== null) {
      await this.#cleanOnce();
      shortage = shortageOf(await this.#measureOrRefuse(), this.#context.numbers);
    }
    if (shortage !== null) throw new HoldfastError(shortage.code, { message: shortage.message });
  }

  /** Checks only the free disk, for operations that need no memory. */
  async admitDisk(): Promise<void> {
    const { diskReserveBytes } = this.#context.numbers;
    const shortage = shortageOf(await this.#measureOrRefuse(), { diskReserveBytes, memoryReserveBytes: 0 });
    if (shortage !== null) throw new HoldfastError(shortage.code, { message: shortage.message });
  }

  /**
   * Throws if a limit on the number of sandboxes is reached. The limits are checked again when the sandbox takes its
   * place, because others may have taken places while the host was measured.
   */
  checkCaps(owner: string | null): void {
    const { maxSandboxes, maxSandboxesPerKey } = this.#context.numbers;
    let all = 0;
    let own = 0;
    for (const { record, isRestarting } of this.#registry.allLive()) {
      if (!takesPlace(record) && !isRestarting) continue;
      all += 1;
      if (owner !== null && record.owner === owner) own += 1;
    }
    const message =
      all >= maxSandboxes
        ? `There are ${all} sandboxes; the limit is ${maxSandboxes}.`
        : own >= maxSandboxesPerKey
          ? `This key has ${own} sandboxes; the limit is ${maxSandboxesPerKey}.`
          : null;
    if (message !== null) throw new HoldfastError("too_many_sandboxes", { message });
  }

  /** Throws if a requested limit exceeds what the host has, because the sandbox could never use that much. */
  async checkSize(asked: Partial<Resources> = {}): Promise<void> {
    if (asked.memoryMb === undefined && asked.cpus === undefined) return;
    const message = oversizeOf(this.capacity ?? (await this.#measureOrRefuse()), asked);
    if (message !== null) throw new HoldfastError("invalid_request", { message });
  }

  /**
   * Throws while launches are suspended: while the open breaker refuses launches, and while the probe of the half-open
   * breaker is in progress.
   */
  checkLaunches(): void {
    const state = this.#breaker;
    const { clock, numbers } = this.#context;
    const now = clock.now();
    if (state.name === "closed") return;
    if (state.name === "open" && !isSuspended(state.until, now, numbers)) return;
    const retryAfterMs = state.name === "open" ? state.until - now : undefined;
    throw new HoldfastError("launches_suspended", {
      cause: errorOf(state.cause),
      ...(retryAfterMs === undefined ? {} : { retryAfterMs }),
    });
  }

  /**
   * Asks the breaker whether a launch may start now. The breaker was checked when the sandbox was admitted, but
   * launches may have been suspended while the sandbox was queued.
   */
  mayLaunch(): boolean {
    return this.#step({ type: "ask", now: this.#context.clock.now() });
  }

  launched(): void {
    this.#step({ type: "succeeded" });
  }

  /**
   * Reports a failed launch to the breaker. A null cause means that the failure says nothing about the host. If a
   * launch with a null cause was the probe, the next launch becomes the probe.
   */
  launchEnded(cause: Cause | null): void {
    const now = this.#context.clock.now();
    if (cause !== null) this.#step({ type: "failed", now, cause });
    else if (this.#breaker.name === "half-open") this.#step({ type: "overtaken", now });
  }

  #step(input: BreakerInput): boolean {
    const before = this.#breaker;
    const next = nextBreaker(before, input, this.#context.numbers);
    if (next === null) return false;
    this.#breaker = next;
    if (next.name === "open" && before.name === "closed")
      this.#record(
        "launches.suspended",
        `${next.failures} launches failed in a row: ${rootMessage(next.cause)}`,
      );
    if (next.name === "closed" && before.name !== "closed")
      this.#record("launches.resumed", "A launch succeeded: launches are allowed again.");
    return true;
  }

  #record(type: "launches.suspended" | "launches.resumed", message: string): void {
    const { clock, log } = this.#context;
    log.warn({}, message);
    void recordEvent(this.#context, { at: clock.now(), type, message });
  }

  async #measureOrRefuse(): Promise<Capacity> {
    try {
      return await this.measure();
    } catch (error) {
      const message = "The host's free disk and memory could not be measured, so nothing is launched.";
      throw new HoldfastError("capacity", { message, cause: error });
    }
  }

  async measure(): Promise<Capacity> {
    const { clock, driver, numbers, stopping } = this.#context;
    const limit = { ms: numbers.measureMs, what: "measuring the host", signal: stopping };
    this.capacity = await within(clock, limit, (signal) => driver.capacity(signal));
    return this.capacity;
  }

  /**
   * Whether the host is so short of disk or memory that sweeps may remove disposable sandboxes and suspend idle ones.
   * False if the host can't be measured.
   */
  async isShort(): Promise<boolean> {
    const capacity = await this.measure().catch(() => null);
    return capacity !== null && isAbove(capacity, this.#context.numbers.sweepPressureShare);
  }

  async #cleanOnce(): Promise<void> {
    this.#cleaning ??= this.#events.roomNeeded.run().finally(() => {
      this.#cleaning = null;
    });
    await this.#cleaning.catch((error: unknown) => {
      this.#context.log.warn({ cause: causeOf(error) }, "cleaning up to free room failed");
    });
  }
}
