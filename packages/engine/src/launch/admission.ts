import { type Cause, causeOf, HoldfastError, type Numbers } from "@holdfast/contract";
import { type BreakerInput, type BreakerState, isSuspended, LAUNCHES_OPEN, nextBreaker } from "./breaker.ts";
import type { Cell } from "./cell.ts";
import { within } from "./clock.ts";
import { errorOf, rootMessage } from "./gate.ts";
import { mb } from "./megabytes.ts";
import type { Capacity } from "./ports.ts";
import type { SandboxRecord } from "./records.ts";
import type { World } from "./world.ts";

/** Why there is no room for another sandbox, from the figures alone; null where there is. */
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

/** One that failed and of which nothing runs any more takes no place. */
export const takesPlace = ({ phase, lease }: SandboxRecord): boolean =>
  phase.name !== "failed" || lease.state !== "none";

/** Whether more than the given share of disk or memory is in use. */
export function isAbove(capacity: Capacity, share: number): boolean {
  const { diskFreeBytes, diskTotalBytes, memoryFreeBytes, memoryTotalBytes } = capacity;
  return diskFreeBytes < diskTotalBytes * (1 - share) || memoryFreeBytes < memoryTotalBytes * (1 - share);
}

/**
 * Decides who may be launched, before anything is made. Caps first, because they cost nothing; then whether launches
 * work at all; then the figures of the host. Where room is short, what is known to be stale is removed and the host
 * measured again, once. What can't be measured is refused: a guess is how disks fill. Nothing is destroyed here that a
 * sweep would not have destroyed anyway.
 */
export class Admission {
  readonly #world: World;
  readonly #cells: () => Iterable<Cell>;
  readonly #clean: () => Promise<unknown>;
  #breaker: BreakerState = LAUNCHES_OPEN;
  #cleaning: Promise<unknown> | null = null;
  /** As last measured. */
  capacity: Capacity | null = null;

  constructor(world: World, cells: () => Iterable<Cell>, clean: () => Promise<unknown>) {
    this.#world = world;
    this.#cells = cells;
    this.#clean = clean;
  }

  get launches(): BreakerState {
    return this.#breaker;
  }

  async admit(owner: string | null): Promise<void> {
    this.checkCaps(owner);
    this.checkLaunches();
    let shortage = shortageOf(await this.#measureOrRefuse(), this.#world.numbers);
    if (shortage !== null) {
      await this.#cleanOnce();
      shortage = shortageOf(await this.#measureOrRefuse(), this.#world.numbers);
    }
    if (shortage !== null) throw new HoldfastError(shortage.code, { message: shortage.message });
  }

  /** For what takes disk and no memory. */
  async admitDisk(): Promise<void> {
    const { diskReserveBytes } = this.#world.numbers;
    const shortage = shortageOf(await this.#measureOrRefuse(), { diskReserveBytes, memoryReserveBytes: 0 });
    if (shortage !== null) throw new HoldfastError(shortage.code, { message: shortage.message });
  }

  /** Asked again at the moment at which a sandbox takes its place: others may have, while the host was measured. */
  checkCaps(owner: string | null): void {
    const { maxSandboxes, maxSandboxesPerKey } = this.#world.numbers;
    let all = 0;
    let own = 0;
    for (const { record, reviving } of this.#cells()) {
      if (!takesPlace(record) && !reviving) continue;
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

  /** Refuses while launches don't work. */
  checkLaunches(): void {
    const state = this.#breaker;
    const { clock, numbers } = this.#world;
    const now = clock.now();
    if (state.name === "open") return;
    if (state.name === "suspended" && !isSuspended(state.until, now, numbers)) return;
    const retryAfterMs = state.name === "suspended" ? state.until - now : undefined;
    throw new HoldfastError("launches_suspended", {
      cause: errorOf(state.cause),
      ...(retryAfterMs === undefined ? {} : { retryAfterMs }),
    });
  }

  /** Asked when a launch has its turn: one that waited in line is launched only if launches work. */
  mayLaunch(): boolean {
    return this.#feed({ type: "ask", now: this.#world.clock.now() });
  }

  launched(): void {
    this.#feed({ type: "succeeded" });
  }

  /** Without a cause it was given up for reasons of its own, and a probe that was is made by the next one. */
  launchEnded(cause: Cause | null): void {
    const now = this.#world.clock.now();
    if (cause !== null) this.#feed({ type: "failed", now, cause });
    else if (this.#breaker.name === "probing") this.#feed({ type: "overtaken", now });
  }

  #feed(input: BreakerInput): boolean {
    const before = this.#breaker;
    const next = nextBreaker(before, input, this.#world.numbers);
    if (next === null) return false;
    this.#breaker = next;
    if (next.name === "suspended" && before.name === "open")
      this.#say(
        "launches.suspended",
        `${next.failures} launches failed in a row: ${rootMessage(next.cause)}`,
      );
    if (next.name === "open" && before.name !== "open")
      this.#say("launches.resumed", "A launch succeeded: launches are let through again.");
    return true;
  }

  #say(type: "launches.suspended" | "launches.resumed", message: string): void {
    const { clock, store, log } = this.#world;
    log.warn({}, message);
    store.commit({ changes: [], events: [{ at: clock.now(), type, message }] }).catch((error: unknown) => {
      log.error({ cause: causeOf(error) }, "an event could not be stored");
    });
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
    const { clock, driver, numbers, stopping } = this.#world;
    const limit = { ms: numbers.measureMs, what: "measuring the host", signal: stopping };
    this.capacity = await within(clock, limit, (signal) => driver.capacity(signal));
    return this.capacity;
  }

  /** Whether sweeps may take what was created disposable. Not knowing is no reason to take anything. */
  async isShort(): Promise<boolean> {
    const capacity = await this.measure().catch(() => null);
    return capacity !== null && isAbove(capacity, this.#world.numbers.sweepPressureShare);
  }

  async #cleanOnce(): Promise<void> {
    this.#cleaning ??= this.#clean().finally(() => {
      this.#cleaning = null;
    });
    await this.#cleaning.catch((error: unknown) => {
      this.#world.log.warn({ cause: causeOf(error) }, "cleaning for room failed");
    });
  }
}
