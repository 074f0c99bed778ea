import { causeOf, type ExecId, HoldfastError, type ProcessId, type SandboxId } from "@holdfast/contract";
import { recordEvent } from "../events/record-event.ts";
import { SerialQueue } from "../lib/serial-queue.ts";
import { errorOf } from "../model/keeper-errors.ts";
import { wantedMounts } from "../model/mount-machine.ts";
import { EXPIRED, goneError, isRemovedByRule } from "../model/removal-cause.ts";
import { isExpired } from "../model/sandbox-facts.ts";
import { decide, type Input } from "../model/sandbox-machine.ts";
import { type Health, type Judgement, judge, NO_HEALTH } from "../model/status.ts";
import type { Decision } from "../model/transition.ts";
import type { Progress } from "../ports/api.ts";
import type { EngineContext } from "../ports/context.ts";
import type { Change, Link } from "../ports/index.ts";
import type { SandboxRecord } from "../ports/records.ts";
import { OomCounter } from "./oom-counter.ts";
import type { OpenExec } from "./open-exec.ts";
import type { PersistentLink } from "./persistent-link.ts";
import type { ProcessEntry } from "./process-entry.ts";
import { StandbyBackoff } from "./standby-backoff.ts";

const RETRY_MS = 1_000;
const LOSSES_KEPT = 16;

/**
 * One live sandbox in memory: its record as stored, the evidence of its health, and the queue that runs all decisions
 * about it. Decisions run one after the other, but effects run concurrently. If an effect finishes late, its generation
 * or attempt is no longer current, and the state machine ignores its result.
 */
export class LiveSandbox {
  readonly #context: EngineContext;
  #record: Mutable<SandboxRecord>;
  readonly #decisions: SerialQueue;
  #waiters = new Set<() => void>();
  #notedStatus: Judgement["status"] | null = null;
  #storedActivity: number;
  #health: Health = NO_HEALTH;
  #link: PersistentLink | null = null;
  #linkEpoch = 0;
  readonly #openExecs = new Set<OpenExec>();
  readonly #queuedExecs = new Set<OpenExec>();
  readonly #processes = new Map<ProcessId, ProcessEntry>();
  readonly #linkLosses: number[] = [];
  readonly #mounting = new Set<string>();
  readonly #openMountPaths = new Set<string>();
  readonly #progressListeners = new Set<(progress: Progress) => void>();
  readonly #deleted = new AbortController();
  #fileCalls = 0;
  #calls = 0;
  /** The execs whose end a caller awaits: one entry for each caller. */
  readonly #awaitedExecs: ExecId[] = [];
  #waitingForWake = 0;
  #suspension: Promise<void> | null = null;
  #suspensionCancel: AbortController | null = null;
  #isSaving = false;
  #isRestarting = false;
  #isRecovering: boolean;
  #waking: Promise<void> | null = null;
  #driverWork: Promise<unknown> = Promise.resolve();
  #healing: Promise<unknown> = Promise.resolve();
  #discarding: Promise<unknown> = Promise.resolve();
  /** The time at which this server created or recovered the sandbox. */
  readonly reachableSince: number;
  readonly oom = new OomCounter();
  readonly standbyBackoff = new StandbyBackoff();

  /** `isRecovering`: the sandbox is one of the last server's, and `endRecovery` will be called. */
  constructor(context: EngineContext, record: SandboxRecord, { isRecovering = false } = {}) {
    this.#context = context;
    this.#isRecovering = isRecovering;
    this.#record = { ...record };
    this.#decisions = new SerialQueue({ limit: context.numbers.changesWaiting });
    this.#storedActivity = record.lastActivityAt;
    this.reachableSince = context.clock.now();
  }

  /** The record. Only decisions, `touch` and `countExec` change it. */
  get record(): SandboxRecord {
    return this.#record;
  }
  get id(): SandboxId {
    return this.#record.id;
  }

  // ── Decisions ──────────────────────────────────────────────────────────────────────────────────────────────────

  /**
   * Decides an input, and stores the result and the given changes in one commit. `stillWanted` is called just before
   * the decision. Returns null and stores nothing if `stillWanted` returns false or the input no longer applies. The
   * record changes only when the commit is durable.
   */
  decide(
    input: Input,
    also: readonly Change[] = [],
    stillWanted: () => boolean = () => true,
  ): Promise<Decision | null> {
    return this.#decisions.run(() => (stillWanted() ? this.#decideNow(input, also) : null));
  }

  /**
   * Decides an input that must not be lost: retries while the store refuses it. Returns null if the input no longer
   * applies, or when the server stops.
   */
  async decideSurely(input: Input): Promise<Decision | null> {
    const { stopping } = this.#context;
    return this.decideUntil(input, stopping).catch((error: unknown) => {
      if (stopping.aborted) return null;
      throw error;
    });
  }

  /** Decides an input and retries while the store refuses it. Rejects when the signal aborts. */
  async decideUntil(input: Input, signal: AbortSignal): Promise<Decision | null> {
    const { clock, log } = this.#context;
    for (;;) {
      try {
        return await this.decide(input);
      } catch (error) {
        signal.throwIfAborted();
        log.error(
          { sandbox: this.id, input: input.type, cause: causeOf(error) },
          "a decision could not be stored; it is tried again",
        );
        await clock.sleep(RETRY_MS, signal);
      }
    }
  }

  async #decideNow(input: Input, also: readonly Change[]): Promise<Decision | null> {
    const { clock, numbers, store, log } = this.#context;
    const before = { ...this.#record };
    const decision = decide(before, input, clock.now(), numbers);
    if (decision === null) return null;
    const record = { ...decision.record, revision: before.revision + 1 };
    const { events, counters } = decision;
    const change = { kind: "sandbox.update", record, expectedRevision: before.revision } as const;
    const outlives = ABOUT_PROCESSES.has(input.type) ? "server" : "host";
    await store.commit({ changes: [change, ...also], events, counters, outlives });
    this.#record = this.#withActivitySince(before, record);
    // The kernel counts the out-of-memory kills of each instance from zero, so the count of recorded kills is reset
    // too.
    if (record.generation !== before.generation) {
      this.oom.reset(0);
      this.#linkLosses.splice(0);
    }
    // A change of the phase invalidates the last proof, except if the input is in `PROVEN_BEFORE`. This rule does not
    // depend on clocks, which can jump.
    if (record.phase !== before.phase && !PROVEN_BEFORE.has(input.type))
      this.#health = { ...this.#health, proof: null, provenAt: null, provenMounts: [] };
    const { id: sandbox, generation } = record;
    log.info(
      { sandbox, generation, input: input.type, phase: record.phase.name, lease: record.lease.state },
      `sandbox ${input.type}`,
    );
    this.changed();
    return { ...decision, record };
  }

  /** Adds the activity during the commit to the committed record: `touch` and `countExec` do not wait for a commit. */
  #withActivitySince(before: SandboxRecord, committed: SandboxRecord): SandboxRecord {
    const { lastActivityAt, execsStarted } = this.#record;
    const isTouched = lastActivityAt !== before.lastActivityAt;
    return {
      ...committed,
      lastActivityAt: isTouched ? lastActivityAt : committed.lastActivityAt,
      execsStarted: committed.execsStarted + (execsStarted - before.execsStarted),
    };
  }

  // ── Calls and activity ─────────────────────────────────────────────────────────────────────────────────────────

  /** Whether the sandbox is paused, suspending, in standby or waking. */
  get isAsleep(): boolean {
    return ASLEEP.has(this.#record.phase.name);
  }

  /** Number of calls that use the link at present, not counting output streams. */
  get calls(): number {
    return this.#calls;
  }

  /**
   * Registers a call that uses the link; the returned function unregisters the call. A sandbox is not suspended while a
   * call is registered.
   */
  enter(): () => void {
    this.#calls += 1;
    return () => {
      this.#calls -= 1;
      this.touch();
      if (this.#calls === 0) this.changed();
    };
  }

  /**
   * The execs whose end a caller awaits. A waiting caller counts as a call in progress, although it does not use the
   * link.
   */
  get awaitedExecs(): ReadonlySet<ExecId> {
    return new Set(this.#awaitedExecs);
  }

  /**
   * Registers that a caller waits for the end of an exec. The returned function unregisters the caller; calling it
   * again does nothing.
   */
  awaitExec(id: ExecId): () => void {
    this.#awaitedExecs.push(id);
    let isWaiting = true;
    return () => {
      if (!isWaiting) return;
      isWaiting = false;
      this.#awaitedExecs.splice(this.#awaitedExecs.indexOf(id), 1);
      if (!this.isAsleep) this.touch();
      if (this.#awaitedExecs.length === 0) this.changed();
    };
  }

  /** Number of calls that wait for the sandbox to wake. */
  get waitingForWake(): number {
    return this.#waitingForWake;
  }

  /** Registers that a call waits for the wake; the returned function unregisters the call. */
  waitForWake(): () => void {
    this.#waitingForWake += 1;
    return () => {
      this.#waitingForWake -= 1;
    };
  }

  /** Number of file calls since this server started. */
  get fileCalls(): number {
    return this.#fileCalls;
  }

  countFileCall(): void {
    this.#fileCalls += 1;
  }

  // ── Execs and processes ────────────────────────────────────────────────────────────────────────────────────────

  /** Execs without an outcome. */
  get openExecs(): ReadonlySet<OpenExec> {
    return this.#openExecs;
  }

  addExec(exec: OpenExec): void {
    this.#openExecs.add(exec);
  }

  removeExec(exec: OpenExec): void {
    this.#openExecs.delete(exec);
  }

  /** The queued execs, in order of arrival. */
  get queuedExecs(): ReadonlySet<OpenExec> {
    return this.#queuedExecs;
  }

  queueExec(exec: OpenExec): void {
    this.#queuedExecs.add(exec);
  }

  unqueueExec(exec: OpenExec): void {
    this.#queuedExecs.delete(exec);
  }

  /** The named processes, oldest first. */
  get processes(): ReadonlyMap<ProcessId, ProcessEntry> {
    return this.#processes;
  }

  addProcess(entry: ProcessEntry): void {
    this.#processes.set(entry.record.id, entry);
  }

  removeProcess(id: ProcessId): void {
    this.#processes.delete(id);
  }

  /** Whether the sandbox has a named process that has not ended. */
  get hasLiveProcess(): boolean {
    for (const { record } of this.#processes.values()) if (record.end === null) return true;
    return false;
  }

  /**
   * Whether an open exec, or a process that has not ended, has `keepAwake`. A process counts even between two of its
   * runs.
   */
  get isKeptAwake(): boolean {
    for (const { record } of this.#processes.values())
      if (record.end === null && record.spec.command.keepAwake) return true;
    for (const { record } of this.#openExecs) if (record.spec.keepAwake) return true;
    return false;
  }

  // ── Suspension, wake, delete ───────────────────────────────────────────────────────────────────────────────────

  /** The suspension in progress. */
  get suspension(): Promise<void> | null {
    return this.#suspension;
  }

  /**
   * Starts a suspension, or joins the one in progress. `cancelSuspension` aborts the signal that `begin` is called
   * with.
   */
  suspendOnce(begin: (cancelled: AbortSignal) => Promise<void>): Promise<void> {
    if (this.#suspension !== null) return this.#suspension;
    const cancel = new AbortController();
    this.#suspensionCancel = cancel;
    this.#suspension = begin(cancel.signal).finally(() => {
      this.#suspension = null;
      this.#suspensionCancel = null;
      this.changed();
    });
    return this.#suspension;
  }

  /** Cancels the suspension in progress, unless it has been committed. */
  cancelSuspension(reason: Error): void {
    this.#suspensionCancel?.abort(reason);
  }

  /** Commits the suspension: from now on, calls wait for the wake instead of cancelling the suspension. */
  commitSuspension(): void {
    this.#suspensionCancel = null;
  }

  /**
   * Whether a copy of the sandbox is being made, for a checkpoint, a backup or an export. Afterwards the sandbox serves
   * again.
   */
  get isSaving(): boolean {
    return this.#isSaving;
  }

  beginSave(): void {
    this.#isSaving = true;
  }

  endSave(): void {
    this.#isSaving = false;
    this.changed();
  }

  /** Starts a wake, or joins the one in progress. */
  wakeOnce(begin: () => Promise<void>): Promise<void> {
    this.#waking ??= begin().finally(() => {
      this.#waking = null;
      this.changed();
    });
    return this.#waking;
  }

  /** Whether a failed sandbox is being restarted and is about to take its place on the host again. */
  get isRestarting(): boolean {
    return this.#isRestarting;
  }

  async whileRestarting<Result>(work: () => Promise<Result>): Promise<Result> {
    this.#isRestarting = true;
    try {
      return await work();
    } finally {
      this.#isRestarting = false;
    }
  }

  /** Aborted when the delete of the sandbox is recorded. A launch, wake or suspension in progress then ends. */
  get deletedSignal(): AbortSignal {
    return this.#deleted.signal;
  }

  /** Aborts `deletedSignal`, with the error for callers whose work in progress is ended. The delete is recorded by then. */
  markDeleted(): void {
    this.#deleted.abort(this.refusal() ?? goneError(this.id, null));
  }

  /**
   * Whether the first attempt to recover the sandbox is in progress, after a start of the server. Until it has ended,
   * missing evidence says nothing about the sandbox.
   */
  get isRecovering(): boolean {
    return this.#isRecovering;
  }

  endRecovery(): void {
    if (!this.#isRecovering) return;
    this.#isRecovering = false;
    this.changed();
  }

  // ── Work that others wait for ──────────────────────────────────────────────────────────────────────────────────

  /**
   * The driver's launch, restore or copy in progress. A cleanup waits for its end; otherwise the driver might recreate
   * what the cleanup removed.
   */
  get driverWork(): Promise<unknown> {
    return this.#driverWork;
  }

  trackDriverWork(work: Promise<unknown>): void {
    this.#driverWork = work.catch(() => undefined);
  }

  /** The healing in progress. A freeze and a cleanup wait for its end. Never rejects. */
  get healing(): Promise<unknown> {
    return this.#healing;
  }

  trackHealing(work: Promise<unknown>): void {
    this.#healing = Promise.allSettled([this.#healing, work]);
  }

  /**
   * The removal of old checkpoints in progress. A new checkpoint is written only afterwards; otherwise it might be
   * removed too.
   */
  get discarding(): Promise<unknown> {
    return this.#discarding;
  }

  trackDiscard(work: Promise<unknown>): void {
    this.#discarding = Promise.allSettled([this.#discarding, work]);
  }

  isMounting(path: string): boolean {
    return this.#mounting.has(path);
  }

  /** Marks a path as being mounted. Until `endMount`, no proof expects a drive at the path. */
  beginMount(path: string): void {
    this.#mounting.add(path);
  }

  endMount(path: string): void {
    this.#mounting.delete(path);
  }

  /**
   * Marks the path as open. The sandbox should have a drive at an open path, but two things are unknown: whether the
   * drive is mounted at the path, and whether writes to the directory beneath the mount fail.
   */
  noteOpenMountPath(path: string): void {
    this.#openMountPaths.add(path);
  }

  noteClosedMountPath(path: string): void {
    this.#openMountPaths.delete(path);
  }

  /**
   * Whether the path is marked as open and the drive's mount at the path is unproven. A path is not open if a proof has
   * seen the mount from inside and outside the sandbox, even if the attempt to make the mount was reported as failed.
   */
  isOpenMountPath(path: string): boolean {
    return this.#openMountPaths.has(path) && !this.#health.provenMounts.includes(path);
  }

  /**
   * Whether any path at which this sandbox should have a drive is open. Data that a process writes to an open path may
   * end up on the sandbox's own disk instead of the drive.
   */
  get hasOpenMountPath(): boolean {
    return wantedMounts(this.#record).some(({ path }) => this.isOpenMountPath(path));
  }

  // ── Link and health ────────────────────────────────────────────────────────────────────────────────────────────

  /** The link to the keeper of the current instance; null if no link is up. */
  get link(): Link | null {
    return this.#link?.current ?? null;
  }

  /**
   * Returns the current link of the sandbox. If a link is attached but down, waits for it to come up; rejects if it is
   * still down after `ms`, if it is closed, or if the signal aborts. If no link is attached, returns null at once.
   */
  async waitForLink(ms: number, signal: AbortSignal): Promise<Link | null> {
    return (await this.#link?.get(ms, signal)) ?? null;
  }

  /** Whether a link is attached. An attached link may be up, down or closed. */
  get isLinked(): boolean {
    return this.#link !== null;
  }

  /** Whether a link is attached and not closed. When such a link is lost, a new one is opened. */
  get isLinkWanted(): boolean {
    return this.#link !== null && !this.#link.isClosed;
  }

  /**
   * A number that changes whenever a link is attached or detached. It does not change when the attached link is lost
   * and connects again.
   */
  get linkEpoch(): number {
    return this.#linkEpoch;
  }

  /** How many times the attached link was lost or a connection attempt failed. */
  get linkFailures(): number {
    return this.#link?.losses ?? 0;
  }

  attachLink(link: PersistentLink): void {
    this.#link = link;
    this.#linkEpoch += 1;
  }

  /** Closes the connection, so that a new one is opened at once. Does nothing if no link is up. */
  renewLink(): void {
    this.#link?.renew();
  }

  /** Closes the link; calls that wait for the link are rejected. */
  closeLink(): void {
    this.#link?.close();
  }

  /** Closes the link and drops it, so that another one can be attached. */
  detachLink(): void {
    if (this.#link === null) return;
    this.#link.close();
    this.#link = null;
    this.#linkEpoch += 1;
  }

  /**
   * The times of the latest losses of the link, oldest first. Only as many are kept as the detection of flapping needs.
   */
  get linkLosses(): readonly number[] {
    return this.#linkLosses;
  }

  get health(): Health {
    return this.#health;
  }

  judge(): Judgement {
    return judge(this.#record, this.evidence, this.#context.clock.now(), this.#context.numbers);
  }

  /**
   * Returns the health with the arrival time of the last frame on the link, because each frame shows that the keeper
   * lives.
   */
  get evidence(): Health {
    const { link } = this;
    return link ? { ...this.#health, heardAt: link.lastReceivedAt, linkDown: null } : this.#health;
  }

  learn(news: Partial<Health>): void {
    this.#health = { ...this.#health, ...news };
    this.changed();
  }

  noteLinkLoss(): void {
    this.#linkLosses.push(this.#context.clock.now());
    this.#linkLosses.splice(0, this.#linkLosses.length - LOSSES_KEPT);
  }

  /**
   * Records in memory that the sandbox was used. The time is stored with the next decision or in a batch
   * (`unstoredActivity`).
   */
  touch(): void {
    this.#record.lastActivityAt = this.#context.clock.now();
  }

  /** Returns the time of the last activity. Returns null if that time is stored, or was returned by an earlier call. */
  unstoredActivity(): number | null {
    const { lastActivityAt } = this.#record;
    if (lastActivityAt <= this.#storedActivity) return null;
    this.#storedActivity = lastActivityAt;
    return lastActivityAt;
  }

  progress(step: string): void {
    const at = this.#context.clock.now();
    for (const listener of this.#progressListeners) listener({ step, at });
  }

  /** Calls the listener with each step of a launch, until the returned function is called. */
  onProgress(listener: (progress: Progress) => void): () => void {
    this.#progressListeners.add(listener);
    return () => this.#progressListeners.delete(listener);
  }

  /** Counts an exec in memory only; the store updates its own count when it stores the exec. */
  countExec(): void {
    this.#record.execsStarted += 1;
  }

  /** Makes all waits in `until` check their condition again, and records a change of status. */
  changed(): void {
    this.#noteStatus();
    for (const wake of [...this.#waiters]) wake();
  }

  /** Resolves as soon as `condition` returns true. If the signal aborts first, rejects with the signal's reason. */
  async until(condition: () => boolean, signal: AbortSignal): Promise<void> {
    while (!condition()) {
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

  /** Records in the timeline, with the cause, that a running sandbox stopped serving or serves again. */
  #noteStatus(): void {
    if (this.#isRecovering) return;
    const { status, cause } = this.judge();
    const before = this.#notedStatus;
    if (status === before) return;
    this.#notedStatus = status;
    const type =
      status === "degraded"
        ? "sandbox.degraded"
        : before === "degraded" && status === "ready"
          ? "sandbox.recovered"
          : null;
    if (type === null) return;
    const { clock, log } = this.#context;
    const { id: sandboxId, generation } = this.#record;
    const message = cause?.message ?? "The sandbox serves again.";
    log[type === "sandbox.degraded" ? "warn" : "info"](
      { sandbox: sandboxId, generation, status, cause },
      message,
    );
    const event = {
      at: clock.now(),
      type,
      sandboxId,
      generation,
      message,
      data: cause ? { cause } : {},
    } as const;
    void recordEvent(this.#context, event);
  }

  /** Whether the sandbox's TTL has passed but the sandbox is not deleted yet. */
  get isExpired(): boolean {
    return isExpired(this.#record, this.#context.clock.now());
  }

  /** Returns why no call can be served in this phase; null if calls can be served now or soon. */
  refusal(): HoldfastError | null {
    const { phase, id: sandboxId } = this.#record;
    if (this.isExpired) return goneError(sandboxId, EXPIRED);
    switch (phase.name) {
      case "deleting":
        if (isRemovedByRule(this.#record)) return goneError(sandboxId, phase.cause);
        return new HoldfastError("wrong_state", { sandboxId, message: "The sandbox is being deleted." });
      case "gone":
        return goneError(sandboxId, phase.cause);
      case "failed":
        return new HoldfastError("sandbox_failed", {
          sandboxId,
          message: `The sandbox failed: ${this.judge().cause?.message ?? phase.cause.message}`,
          cause: errorOf(phase.cause),
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

type Mutable<Data> = { -readonly [Key in keyof Data]: Data[Key] };

const ASLEEP = new Set<SandboxRecord["phase"]["name"]>(["paused", "suspending", "standby", "waking"]);

/**
 * Inputs that concern only processes. Their commits must survive a crash of the server, which leaves processes running.
 * They need not survive a crash of the host: it ends the processes too, and the record is then correct without these
 * inputs.
 */
const ABOUT_PROCESSES = new Set<Input["type"]>(["launched", "wake", "stop_attempt"]);

/** Inputs that follow a proof of the instance. The proof stays valid in the phase that the input leads to. */
const PROVEN_BEFORE = new Set<Input["type"]>(["proven", "suspend_failed", "saved", "copied", "resume"]);
