import { causeOf, HoldfastError, type ProcessId, type SandboxId } from "@holdfast/contract";
import type { Progress } from "./api.ts";
import type { LinkHolder } from "./link-holder.ts";
import { type Decision, decide, type Input } from "./machine.ts";
import type { OpenExec } from "./open-exec.ts";
import type { Change } from "./ports.ts";
import type { ProcessEntry } from "./process-entry.ts";
import type { SandboxRecord } from "./records.ts";
import { type Health, type Judgement, judge, NO_HEALTH } from "./status.ts";
import type { World } from "./world.ts";

const RETRY_MS = 1_000;
const LOSSES_KEPT = 16;

/**
 * One live sandbox in memory: its record as stored, what is known of its health, and the queue through which every
 * decision about it goes. Decisions are serialised, effects are not: an effect that comes back late finds that its
 * generation or attempt is no longer the current one, and its answer is dropped by the machine.
 */
export class Cell {
  readonly #world: World;
  #record: SandboxRecord;
  #tail: Promise<unknown> = Promise.resolve();
  #waiters = new Set<() => void>();
  #noted: Judgement["status"] | null = null;
  #storedActivity: number;
  /** Since when this server has it. */
  readonly reachableSince: number;
  health: Health = NO_HEALTH;
  links: LinkHolder | null = null;
  oomKills = 0;
  /** When the kernel was last seen to have killed something here for memory. */
  oomSeenAt = Number.NEGATIVE_INFINITY;
  readonly openExecs = new Set<OpenExec>();
  /** Those of them that wait for their turn, in the order they came. */
  readonly queuedExecs = new Set<OpenExec>();
  /** Its named processes, oldest first. */
  readonly processes = new Map<ProcessId, ProcessEntry>();
  /** When its link was lost, newest last: as many as tell whether it flaps. */
  readonly linkLosses: number[] = [];
  /** Calls on its files since this server started. */
  fileCalls = 0;
  /** Calls that use its link right now, streams of output aside. */
  calls = 0;
  /** Calls that wait for it to wake. */
  held = 0;
  /** Paths at which a drive is being mounted: until that is done no proof looks for it. */
  readonly mounting = new Set<string>();
  /** The way into standby, while it is under way, and what turns it back as long as that can be. */
  suspension: Promise<void> | null = null;
  turnBack: AbortController | null = null;
  /** A checkpoint is being made of it, and it goes on afterwards. */
  saving = false;
  /** The way out of standby that all callers share. */
  waking: Promise<void> | null = null;
  /** Standbys that failed in a row, and when idleness may ask for the next. */
  standbyFailures = 0;
  standbyNotBefore = 0;
  /** It failed, and is about to have its place again. */
  reviving = false;
  /** Told of each step of a launch. */
  readonly onProgress = new Set<(progress: Progress) => void>();
  /** Ends the launch under way when a delete overtakes it. */
  readonly fence = new AbortController();
  /** What the driver makes or writes of it right now; whoever cleans up behind it waits for it to be over, or it might build what was just removed. */
  launching: Promise<unknown> = Promise.resolve();

  /** What is done to it that it may serve again: whoever freezes it, or cleans up behind it, waits for that to be over. */
  mending: Promise<unknown> = Promise.resolve();

  /** Old checkpoints that are being removed: a new one is written only when that is over, or it might go with them. */
  discarding: Promise<unknown> = Promise.resolve();

  constructor(world: World, record: SandboxRecord) {
    this.#world = world;
    this.#record = { ...record };
    this.#storedActivity = record.lastActivityAt;
    this.reachableSince = world.clock.now();
  }

  get record(): SandboxRecord {
    return this.#record;
  }
  get id(): SandboxId {
    return this.#record.id;
  }

  /**
   * Decides and stores, with what else belongs into the same commit. Null: the input no longer applies, and nothing was
   * stored; so it does where `holds`, asked at the last moment, says no. The record changes only when the commit is durable.
   */
  decide(
    input: Input,
    also: readonly Change[] = [],
    holds: () => boolean = () => true,
  ): Promise<Decision | null> {
    const turn = this.#tail.then(() => (holds() ? this.#decideNow(input, also) : null));
    this.#tail = turn.catch(() => undefined);
    return turn;
  }

  /** Decides what must not be forgotten: where the store refuses, it is asked again until it takes it. */
  async decideSurely(input: Input): Promise<Decision | null> {
    const { clock, log, stopping } = this.#world;
    for (;;) {
      try {
        return await this.decide(input);
      } catch (error) {
        if (stopping.aborted) return null;
        log.error(
          { sandbox: this.id, input: input.type, cause: causeOf(error) },
          "a decision is stored again",
        );
        await clock.sleep(RETRY_MS, stopping).catch(() => undefined);
      }
    }
  }

  async #decideNow(input: Input, also: readonly Change[]): Promise<Decision | null> {
    const { clock, numbers, store, log } = this.#world;
    const before = this.#record;
    const decision = decide(before, input, clock.now(), numbers);
    if (decision === null) return null;
    const record = { ...decision.record, revision: before.revision + 1 };
    const { events, counters } = decision;
    const change = { kind: "sandbox.update", record, expectedRevision: before.revision } as const;
    const outlives = ABOUT_PROCESSES.has(input.type) ? "server" : "host";
    await store.commit({ changes: [change, ...also], events, counters, outlives });
    this.#record = record;
    // The kernel counts from nothing for each.
    if (record.generation !== before.generation) {
      this.oomKills = 0;
      this.linkLosses.splice(0);
    }
    // A proof counts for the phase in which, or for which, it was made. Clocks jump; this does not depend on them.
    if (record.phase !== before.phase && !PROVEN_BEFORE.has(input.type))
      this.health = { ...this.health, proof: null, provenAt: null, provenMounts: [] };
    const { id: sandbox, generation } = record;
    log.info(
      { sandbox, generation, input: input.type, phase: record.phase.name, lease: record.lease.state },
      `sandbox ${input.type}`,
    );
    this.changed();
    return { ...decision, record };
  }

  /** Its processes exist and don't run: what waits for them waits. */
  get isAsleep(): boolean {
    return ASLEEP.has(this.#record.phase.name);
  }

  /** Whether it has a named process that is not over. */
  get hasLiveProcess(): boolean {
    for (const { record } of this.processes.values()) if (record.end === null) return true;
    return false;
  }

  /** A call on its link begins, and ends with what is returned: while any is under way it is not put to sleep. */
  enter(): () => void {
    this.calls += 1;
    return () => {
      this.calls -= 1;
      this.touch();
      if (this.calls === 0) this.changed();
    };
  }

  judge(): Judgement {
    return judge(this.#record, this.#currentHealth(), this.#world.clock.now(), this.#world.numbers);
  }

  /** The last frame is evidence of life as well, so the time it came in is read from the link itself. */
  #currentHealth(): Health {
    const link = this.links?.current;
    return link ? { ...this.health, heardAt: link.lastHeardAt, linkDown: null } : this.health;
  }

  get evidence(): Health {
    return this.#currentHealth();
  }

  learn(news: Partial<Health>): void {
    this.health = { ...this.health, ...news };
    this.changed();
  }

  noteLinkLoss(): void {
    this.linkLosses.push(this.#world.clock.now());
    this.linkLosses.splice(0, this.linkLosses.length - LOSSES_KEPT);
  }

  /** Notes activity in memory. It is stored with the next decision, or in batches by `unstoredActivity`. */
  touch(): void {
    this.#record.lastActivityAt = this.#world.clock.now();
  }

  /** The time of the last activity where the store does not have it yet, and never twice. */
  unstoredActivity(): number | null {
    const { lastActivityAt } = this.#record;
    if (lastActivityAt <= this.#storedActivity) return null;
    this.#storedActivity = lastActivityAt;
    return lastActivityAt;
  }

  progress(step: string): void {
    const at = this.#world.clock.now();
    for (const tell of this.onProgress) tell({ step, at });
  }

  /** In memory; the store counts by itself with the exec that it stores. */
  countExec(): void {
    this.#record.execsStarted += 1;
  }

  changed(): void {
    this.#noteStatus();
    for (const wake of [...this.#waiters]) wake();
  }

  /** Resolves as soon as `holds` does; rejects with the signal's reason. */
  async until(holds: () => boolean, signal: AbortSignal): Promise<void> {
    while (!holds()) {
      signal.throwIfAborted();
      await new Promise<void>((resolve) => {
        const wake = () => {
          this.#waiters.delete(wake);
          signal.removeEventListener("abort", wake);
          resolve();
        };
        this.#waiters.add(wake);
        signal.addEventListener("abort", wake, { once: true });
      });
    }
  }

  /** A running sandbox that stops or starts serving again says so in the timeline, with the cause. */
  #noteStatus(): void {
    const { status, cause } = this.judge();
    const before = this.#noted;
    if (status === before) return;
    this.#noted = status;
    const type =
      status === "degraded"
        ? "sandbox.degraded"
        : before === "degraded" && status === "ready"
          ? "sandbox.recovered"
          : null;
    if (type === null) return;
    const { store, clock, log } = this.#world;
    const { id: sandboxId, generation } = this.#record;
    const message = cause?.message ?? "The sandbox serves again.";
    log.warn({ sandbox: sandboxId, generation, status, cause }, message);
    const event = {
      at: clock.now(),
      type,
      sandboxId,
      generation,
      message,
      data: cause ? { cause } : {},
    } as const;
    store.commit({ changes: [], events: [event] }).catch((error: unknown) => {
      log.error({ sandbox: sandboxId, cause: causeOf(error) }, "a status event could not be stored");
    });
  }

  /** Why no call can be served in this phase, or null where one might be, now or soon. */
  refusal(): HoldfastError | null {
    const { phase, id: sandboxId } = this.#record;
    switch (phase.name) {
      case "deleting":
        return new HoldfastError("wrong_state", { sandboxId, message: "The sandbox is being deleted." });
      case "gone":
        return new HoldfastError("sandbox_gone", { sandboxId });
      case "failed":
        return new HoldfastError("sandbox_failed", {
          sandboxId,
          message: `The sandbox failed: ${phase.cause.message}`,
        });
      case "paused":
        return new HoldfastError("wrong_state", {
          sandboxId,
          message: "The sandbox is paused. Resume it first: POST …/resume, or 'holdfast resume'.",
        });
      default:
        return null;
    }
  }
}

const ASLEEP = new Set<SandboxRecord["phase"]["name"]>(["paused", "suspending", "standby", "waking"]);

/**
 * What these say is of processes alone, and a host that ends takes those with it: without them the record says what was so
 * before, which is what is so again. A server that is killed leaves processes behind, so that they must outlive.
 */
const ABOUT_PROCESSES = new Set<Input["type"]>(["launched", "wake", "stop_attempt"]);

/** Decisions that are preceded by the proof which counts after them. */
const PROVEN_BEFORE = new Set<Input["type"]>(["proven", "suspend_failed", "saved", "resume"]);
