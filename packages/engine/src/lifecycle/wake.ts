import { type Cause, causeOf, HoldfastError } from "@holdfast/contract";
import type { Cell } from "./cell.ts";
import { raced, within } from "./clock.ts";
import type { Launcher } from "./launcher.ts";
import { mb } from "./megabytes.ts";
import { wantedMounts } from "./mount-step.ts";
import { CheckpointUnusable } from "./ports.ts";
import type { Prover } from "./prover.ts";
import type { Reaper } from "./reaper.ts";
import { TurnedBack } from "./standby.ts";
import { failedProof, lacksMountsOnly } from "./status.ts";
import { Turnstile } from "./turnstile.ts";
import type { World } from "./world.ts";

export interface WakeParts {
  prover: Prover;
  reaper: Reaper;
  launcher: Launcher;
  openLink(cell: Cell): void;
  /** Has the drives mounted that it is to have. */
  establish(cell: Cell, signal: AbortSignal): Promise<void>;
  /** Its memory is lost: what ran in it ends, and its policy goes on from there. */
  lost(cell: Cell, cause: Cause): Promise<void>;
  /** It is awake and proven. */
  woke(cell: Cell): void;
}

/**
 * The way out of standby, one for all callers. A checkpoint becomes a running instance at most once: what was restored is
 * frozen until it is stored that the checkpoint is spent, and from then on only that instance counts. Up to there a failed
 * restore may be tried again, once nothing of it is left.
 */
export class Wakes {
  readonly #world: World;
  readonly #parts: WakeParts;
  readonly #turns: Turnstile;

  constructor(world: World, parts: WakeParts) {
    this.#world = world;
    this.#parts = parts;
    this.#turns = new Turnstile(world.numbers.wakesAtOnce);
  }

  /** Holds a call until the sandbox is awake; it is woken for that where it sleeps. */
  async awake(cell: Cell, signal: AbortSignal): Promise<void> {
    if (!isSleeping(cell)) return;
    const { clock, numbers } = this.#world;
    if (cell.held >= numbers.heldPerSandbox) throw new HoldfastError("too_many_held", { sandboxId: cell.id });
    cell.held += 1;
    const limit = { ms: numbers.wakeDeadlineMs, what: "the wake", signal };
    try {
      await within(clock, limit, (inner) => this.#roused(cell, inner));
    } catch (error) {
      if (error instanceof HoldfastError) throw error;
      signal.throwIfAborted();
      const { phase } = cell.record;
      const what =
        phase.name === "suspending" && phase.saving
          ? "A checkpoint of the sandbox is still being made"
          : "The sandbox has not woken in time";
      const message = `${what}: ${causeOf(error).message}`;
      throw cell.refusal() ?? new HoldfastError("wake_timeout", { sandboxId: cell.id, message });
    } finally {
      cell.held -= 1;
    }
  }

  /** A standby under way is turned back while it can be, and slept through otherwise. */
  async #roused(cell: Cell, signal: AbortSignal): Promise<void> {
    while (isSleeping(cell)) {
      signal.throwIfAborted();
      cell.turnBack?.abort(new TurnedBack());
      const { phase } = cell.record;
      if (phase.name === "standby") await raced(this.rouse(cell), signal);
      else await cell.until(() => cell.record.phase.name !== phase.name, signal);
    }
  }

  /** Callers at the same time share one. Rejects where the sandbox stays asleep. */
  rouse(cell: Cell): Promise<void> {
    cell.waking ??= this.#wake(cell).finally(() => {
      cell.waking = null;
      cell.changed();
    });
    return cell.waking;
  }

  async #wake(cell: Cell): Promise<void> {
    const signal = AbortSignal.any([cell.fence.signal, this.#world.stopping]);
    while (cell.record.phase.name === "standby") {
      await this.#gone(cell, signal);
      await this.#turns.pass(signal, () => this.#try(cell, signal));
    }
  }

  /** Nothing of the last instance is left, by the record and by a look. */
  async #gone(cell: Cell, signal: AbortSignal): Promise<void> {
    const { clock, driver, numbers } = this.#world;
    for (;;) {
      this.#parts.reaper.tend(cell);
      const isFree = () => cell.record.lease.state === "none" || cell.record.phase.name !== "standby";
      await cell.until(isFree, signal);
      if (cell.record.phase.name !== "standby") return;
      const limit = { ms: numbers.observeEveryMs * 2, what: "observing", signal };
      const seen = await within(clock, limit, (inner) => driver.observe([cell.id], inner));
      const observation = seen.get(cell.id);
      if (observation?.seen === "absent") return;
      if (observation?.seen !== "present")
        throw new Error(`the sandbox could not be observed: ${observation?.why ?? "it was not looked at"}`);
      await cell.decide({ type: "lingered" });
    }
  }

  async #try(cell: Cell, signal: AbortSignal): Promise<void> {
    const { clock, numbers } = this.#world;
    if (cell.record.phase.name !== "standby") return;
    await this.#admit(cell, signal);
    const ms = numbers.wakeDeadlineMs;
    const begun = await cell.decide({ type: "wake", deadline: clock.now() + ms });
    if (begun === null) return;
    if (begun.record.phase.name === "queued") return this.#parts.launcher.launch(cell);
    const limit = { ms, what: "the wake", signal };
    const { generation } = begun.record;
    try {
      await within(clock, limit, (inner) => this.#restore(cell, generation, inner));
    } catch (error) {
      await this.failed(cell, generation, error);
    }
  }

  /** Memory that comes back from disk must fit; where there is none, a launch that can't work is not begun. */
  async #admit(cell: Cell, signal: AbortSignal): Promise<void> {
    const { clock, driver, numbers } = this.#world;
    const { phase } = cell.record;
    if (phase.name !== "standby") return;
    if (phase.checkpoint === null) return this.#parts.launcher.admit();
    const limit = { ms: numbers.keeperCallMs, what: "measuring the host", signal };
    const { memoryFreeBytes } = await within(clock, limit, (inner) => driver.capacity(inner));
    if (memoryFreeBytes - phase.checkpoint.sizeBytes >= numbers.memoryReserveBytes) return;
    const message = `The host has ${mb(memoryFreeBytes)} MB of memory free; the sandbox's checkpoint has ${mb(phase.checkpoint.sizeBytes)} MB.`;
    throw new HoldfastError("low_memory", { sandboxId: cell.id, message });
  }

  async #restore(cell: Cell, generation: number, signal: AbortSignal): Promise<void> {
    const { driver } = this.#world;
    const { id: sandboxId, record } = cell;
    const { phase, name, spec } = record;
    if (phase.name !== "waking") return;
    const { checkpoint } = phase;
    const { image, resources } = spec;
    const onStep = (step: string) => cell.progress(step);
    const mounts = wantedMounts(record);
    const order = { sandboxId, name, generation, checkpoint, image, resources, mounts, onStep };
    cell.progress("waking");
    const restore = driver.restore(order, signal);
    cell.launching = restore.catch(() => undefined);
    const instance = await raced(restore, signal);
    const spent = await cell.decide({ type: "restored", generation, instance });
    if (spent === null) throw new Error("the wake was overtaken");
    await this.serve(cell, signal);
  }

  /** The last steps, from a restored instance that may run on. */
  async serve(cell: Cell, signal: AbortSignal): Promise<void> {
    const { clock, driver, numbers } = this.#world;
    const { generation } = cell.record;
    await this.#parts.establish(cell, signal);
    const thawing = { ms: numbers.freezeMs, what: "thawing", signal };
    await within(clock, thawing, (inner) => driver.thaw(cell.id, inner));
    cell.links = null;
    this.#parts.openLink(cell);
    cell.progress("proving");
    const proof = await raced(this.#parts.prover.prove(cell), signal);
    // A drive that is gone is no reason to give up memory: it is awake, degraded, and says why.
    if (!proof.ok && !lacksMountsOnly(proof))
      throw new HoldfastError("proof_failed", { message: failedProof(proof).message });
    const keeperBootId = linkOf(cell)?.keeper.bootId;
    if (keeperBootId === undefined) throw new Error("the link was lost after the proof");
    const provenAt = Date.parse(proof.at);
    const lacking = proof.ok ? undefined : failedProof(proof);
    const proven = await cell.decide({ type: "proven", generation, provenAt, keeperBootId, lacking });
    if (proven === null) throw new Error("the wake was overtaken");
    cell.progress("ready");
    this.#parts.woke(cell);
  }

  /** What the machine makes of it is carried out: another try, a cold start, or the end. */
  async failed(cell: Cell, generation: number, error: unknown): Promise<void> {
    const { log, stopping } = this.#world;
    // The next server finds it as it is, and goes on from there.
    if (stopping.aborted || cell.fence.signal.aborted) return;
    const cause = causeOf(error);
    log.warn({ sandbox: cell.id, generation, cause }, "a wake failed");
    const blame = error instanceof CheckpointUnusable ? "checkpoint" : "try";
    const decision = await cell.decideSurely({ type: "wake_failed", generation, cause, blame });
    // Proven at the last moment: then it serves, and needs its link.
    if (decision === null) return;
    cell.links?.close();
    cell.links = null;
    if (decision.record.phase.name === "standby") this.#parts.reaper.tend(cell);
    else await this.#parts.lost(cell, cause);
  }
}

const linkOf = ({ links }: Cell) => links?.current;

/** Phases in which a call is held, because it will be served after them. */
const isSleeping = ({ record: { phase } }: Cell): boolean =>
  phase.name === "suspending" || phase.name === "standby" || phase.name === "waking";
