import { type Cause, causeOf, HoldfastError, isHoldfastError } from "@holdfast/contract";
import type { Cell } from "./cell.ts";
import { raced, within } from "./clock.ts";
import { errorOf } from "./gate.ts";
import { mb } from "./megabytes.ts";
import type { Checkpoint } from "./ports.ts";
import type { ProcessEntry } from "./process-entry.ts";
import type { Prover } from "./prover.ts";
import type { Reaper } from "./reaper.ts";
import { NO_HEALTH } from "./status.ts";
import { Turnstile } from "./turnstile.ts";
import type { World } from "./world.ts";

export interface StandbyParts {
  prover: Prover;
  reaper: Reaper;
  openLink(cell: Cell): void;
}

/** How long calls that are under way may hold an ordered standby, or a checkpoint, up. */
const QUIET_MS = 5_000;

/**
 * The way into standby: quiet, frozen, written, verified, and only then ended. Up to the freeze a call turns it back;
 * after it calls are held. Whatever fails on the way leaves the sandbox running, linked and proven, and says why.
 */
export class Standby {
  readonly #world: World;
  readonly #parts: StandbyParts;
  readonly #turns: Turnstile;
  /** Why those sleep that don't by their own idleness; asked up to the last moment. */
  readonly #reasons = new WeakMap<Cell, () => boolean>();

  constructor(world: World, parts: StandbyParts) {
    this.#world = world;
    this.#parts = parts;
    this.#turns = new Turnstile(world.numbers.standbysAtOnce);
  }

  /** Callers at the same time share one. Resolves when nothing of it is in memory. */
  async suspend(cell: Cell, why: string): Promise<void> {
    const signal = AbortSignal.any([this.#world.stopping, cell.fence.signal]);
    const isFree = () => !cell.saving;
    while (cell.saving)
      await cell.until(isFree, signal).catch((error: unknown) => {
        throw told(cell, error);
      });
    // Somebody wants it to sleep, used or not.
    this.#reasons.set(cell, () => true);
    return this.#shared(cell, why);
  }

  /** For the host's sake, where `holds` still says so at the last moment. One that is on its way there goes on as it is. */
  async rest(cell: Cell, why: string, holds: () => boolean): Promise<void> {
    if (cell.suspension === null) {
      if (cell.saving || !holds()) throw told(cell, new TurnedBack());
      this.#reasons.set(cell, holds);
    }
    return this.#shared(cell, why);
  }

  #shared(cell: Cell, why: string): Promise<void> {
    cell.suspension ??= this.#suspend(cell, why).finally(() => {
      cell.suspension = null;
      cell.turnBack = null;
      this.#reasons.delete(cell);
      cell.changed();
    });
    return cell.suspension;
  }

  async #suspend(cell: Cell, why: string): Promise<void> {
    const { clock, numbers, stopping } = this.#world;
    const turnBack = new AbortController();
    const signal = AbortSignal.any([stopping, cell.fence.signal, turnBack.signal]);
    cell.turnBack = turnBack;
    try {
      await this.#turns.pass(signal, () => this.#steps(cell, why, signal));
    } catch (error) {
      // Use of the sandbox is no failure of its standby.
      const isOvertaken = error instanceof TurnedBack || stopping.aborted || cell.fence.signal.aborted;
      if (!isOvertaken) this.#noteFailure(cell);
      throw told(cell, error);
    }
    // Past the wait the duty goes on by itself; the answer then says `suspending`.
    const isOver = () => cell.record.lease.state === "none" || !isAsleep(cell);
    const limit = { ms: numbers.stopAttemptMs, what: "ending the instance", signal: stopping };
    await within(clock, limit, (inner) => cell.until(isOver, inner)).catch(() => undefined);
  }

  async #steps(cell: Cell, why: string, signal: AbortSignal): Promise<void> {
    const { clock, driver, ids, numbers } = this.#world;
    const { kind } = driver.standby;
    this.#checkUnused(cell);
    await this.#admit(cell, signal);
    const checkpointId = ids.checkpoint();
    const deadline = clock.now() + numbers.standbyDeadlineMs;
    const begun = await cell.decide({ type: "suspend", checkpointId, kind, deadline, why });
    if (begun === null) throw wrongState(cell);
    let checkpoint: Checkpoint | null = null;
    try {
      // What was begun until a moment ago was let in; nothing is from here on.
      this.#checkUnused(cell);
      await untilQuiet(this.#world, cell, signal);
      const limit = { ms: numbers.standbyDeadlineMs, what: "writing the memory", signal };
      if (kind === "memory")
        checkpoint = await within(clock, limit, (inner) => this.#write(cell, checkpointId, inner));
    } catch (error) {
      if (this.#world.stopping.aborted || cell.fence.signal.aborted) throw error;
      await this.goOn(cell, causeOf(error));
      throw error;
    }
    const done = await cell.decideSurely({ type: "suspended", checkpointId, checkpoint });
    if (done === null) throw wrongState(cell);
    cell.links?.close();
    cell.links = null;
    cell.standbyFailures = 0;
    // None of it holds of the instance that comes next.
    cell.learn(NO_HEALTH);
    this.#parts.reaper.tend(cell);
    await this.discard(cell);
  }

  async #write(cell: Cell, id: Checkpoint["id"], signal: AbortSignal): Promise<Checkpoint> {
    const { clock, driver, numbers } = this.#world;
    const { id: sandboxId, record } = cell;
    await raced(Promise.all([cell.discarding, cell.mending]), signal);
    // From here on calls are held, not obeyed: they are served by the wake, or at once if this fails.
    cell.turnBack = null;
    cell.links?.close();
    cell.links = null;
    const freezing = { ms: numbers.freezeMs, what: "freezing", signal };
    await within(clock, freezing, (inner) => driver.freeze(sandboxId, inner));
    const writing = driver.checkpoint({ sandboxId, generation: record.generation, id }, signal);
    cell.launching = writing.catch(() => undefined);
    const checkpoint = await raced(writing, signal);
    // Whatever ran after its memory was written would be undone by the wake, on files that remember it.
    const seen = (await driver.observe([sandboxId], signal)).get(sandboxId);
    if (seen?.seen !== "present" || seen.state !== "frozen")
      throw new Error("the sandbox did not stay frozen while its memory was written");
    return checkpoint;
  }

  async #admit(cell: Cell, signal: AbortSignal): Promise<void> {
    if (this.#world.driver.standby.kind === "memory") await roomFor(this.#world, cell, 0, signal);
  }

  /** Idleness is no reason any more once somebody came while it waited for its turn. */
  #checkUnused(cell: Cell): void {
    const holds = this.#reasons.get(cell) ?? (() => isUnused(cell, this.#world.clock.now()));
    if (!holds()) throw new TurnedBack();
  }

  /** Back to serving, after whatever came in between: thawed, linked, proven, and then said. Never rejects. */
  async goOn(cell: Cell, cause: Cause): Promise<void> {
    const { phase } = cell.record;
    if (phase.name !== "suspending") return;
    await this.serveAgain(cell);
    await cell.decideSurely({ type: "suspend_failed", checkpointId: phase.checkpointId, cause });
    this.#world.log.warn(
      { sandbox: cell.id, cause },
      phase.saving ? "a checkpoint failed; the sandbox goes on" : "a standby failed; the sandbox goes on",
    );
    await this.discard(cell);
  }

  /** Thawed, linked and proven, whatever of that it still lacks, unless its end overtakes it. Never rejects. */
  async serveAgain(cell: Cell): Promise<void> {
    await this.letGo(cell);
    if (cell.record.phase.name !== "suspending") return;
    this.#parts.openLink(cell);
    await this.#parts.prover.prove(cell);
  }

  /** Thawed, once whatever is still being written of it is given up. Never rejects. */
  async letGo(cell: Cell): Promise<void> {
    const { clock, driver, numbers, log } = this.#world;
    await within(clock, { ms: numbers.freezeMs, what: "the driver" }, () => cell.launching).catch(
      () => undefined,
    );
    await within(clock, { ms: numbers.freezeMs, what: "thawing" }, (signal) =>
      driver.thaw(cell.id, signal),
    ).catch((error: unknown) => log.error({ sandbox: cell.id, cause: causeOf(error) }, "thawing failed"));
  }

  #noteFailure(cell: Cell): void {
    const { clock, numbers } = this.#world;
    const wait = numbers.standbyRetryMs * 2 ** Math.min(cell.standbyFailures, 10);
    cell.standbyFailures += 1;
    cell.standbyNotBefore = clock.now() + Math.min(wait, numbers.standbyRetryMaxMs);
  }

  /** Removes all checkpoints but the one that the record speaks of. That they stay is no harm. */
  async discard(cell: Cell): Promise<void> {
    const { clock, driver, numbers, log } = this.#world;
    const { phase } = cell.record;
    // What failed keeps everything, for whoever wants to look into it.
    if (phase.name === "failed" || phase.name === "suspending") return;
    const keep = "checkpoint" in phase ? (phase.checkpoint?.id ?? null) : null;
    const limit = { ms: numbers.stopAttemptMs, what: "discarding checkpoints" };
    await within(clock, limit, (signal) => {
      const discarding = driver.discard(cell.id, keep, signal);
      cell.discarding = Promise.allSettled([cell.discarding, discarding]);
      return discarding;
    }).catch((error: unknown) => {
      log.warn({ sandbox: cell.id, cause: causeOf(error) }, "checkpoints could not be discarded");
    });
  }

  /** Puts to sleep what nobody has used for as long as its lifecycle says. */
  idle(cells: Iterable<Cell>): void {
    const now = this.#world.clock.now();
    for (const cell of cells) {
      if (!isIdle(cell, now)) continue;
      const ms = cell.record.spec.lifecycle.idleStandbyMs;
      this.#shared(cell, `Nobody has used it for ${ms} ms.`).catch((error: unknown) => {
        this.#world.log.info({ sandbox: cell.id, cause: causeOf(error) }, "an idle sandbox stays awake");
      });
    }
  }
}

/** Whether its lifecycle says that it sleeps by now. */
const isIdle = (cell: Cell, now: number): boolean =>
  cell.suspension === null &&
  !cell.saving &&
  now >= cell.standbyNotBefore &&
  isUnused(cell, now) &&
  cell.judge().status === "ready";

/** Whether nobody has used it for as long as its lifecycle says. What holds it awake counts as use. */
function isUnused(cell: Cell, now: number): boolean {
  const { idleStandbyMs } = cell.record.spec.lifecycle;
  if (idleStandbyMs === undefined) return false;
  if (cell.calls > 0 || now - cell.record.lastActivityAt < idleStandbyMs) return false;
  // Also between two runs.
  const isKeptAwake = ({ record }: ProcessEntry) => record.end === null && record.spec.command.keepAwake;
  if ([...cell.processes.values()].some(isKeptAwake)) return false;
  return ![...cell.openExecs].some(({ record }) => record.spec.keepAwake);
}

const isAsleep = ({ record }: Cell): boolean => record.phase.name === "standby";

/** The bytes that may be written to the disk, beside what is promised to others; refuses where its memory alone takes more. */
export async function roomFor(
  { clock, driver, numbers }: World,
  cell: Cell,
  promised: number,
  signal: AbortSignal,
): Promise<number> {
  const limit = { ms: numbers.keeperCallMs, what: "measuring memory and disk", signal };
  const [bytes, { diskFreeBytes }] = await within(clock, limit, (inner) =>
    Promise.all([driver.memoryBytes(cell.id, inner), driver.capacity(inner)]),
  );
  const room = diskFreeBytes - numbers.diskReserveBytes - promised;
  if (room >= bytes) return room;
  const message = `Its memory has ${mb(bytes)} MB, and the disk has ${mb(diskFreeBytes)} MB free with ${mb(numbers.diskReserveBytes)} MB in reserve.`;
  throw new HoldfastError("disk_full", { sandboxId: cell.id, message });
}

/** Resolves when nothing is on its way to the keeper, or from it. */
export async function untilQuiet({ clock }: World, cell: Cell, signal: AbortSignal): Promise<void> {
  const limit = { ms: QUIET_MS, what: "waiting for the calls that are under way", signal };
  await within(clock, limit, (inner) => cell.until(() => isQuiet(cell), inner));
}

/** Starts that the keeper has not confirmed are on their way to it. */
export const isQuiet = (cell: Cell): boolean =>
  cell.calls === 0 && [...cell.openExecs].every(({ queued, acknowledged }) => queued || acknowledged);

function told(cell: Cell, error: unknown): unknown {
  if (isHoldfastError(error)) return error;
  const refusal = cell.refusal();
  if (refusal !== null) return refusal;
  if (error instanceof TurnedBack) return new HoldfastError("standby_cancelled", { sandboxId: cell.id });
  const cause = causeOf(error);
  const message = `The sandbox could not be put to sleep: ${cause.message}`;
  return new HoldfastError("standby_failed", { sandboxId: cell.id, message, cause: errorOf(cause) });
}

/** Why a suspension ends that a call came into the way of. */
export class TurnedBack extends Error {
  constructor() {
    super("a call came before the sandbox was frozen");
    this.name = "TurnedBack";
  }
}

const wrongState = (cell: Cell): HoldfastError => {
  const { status } = cell.judge();
  const message = `A sandbox that is ${status} can't be put to sleep.`;
  return cell.refusal() ?? new HoldfastError("wrong_state", { sandboxId: cell.id, message });
};
