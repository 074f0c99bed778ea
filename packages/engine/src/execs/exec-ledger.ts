import { type Cause, type Exec, type ExecId, HoldfastError } from "@holdfast/contract";
import { soonest } from "../lib/deadline.ts";
import type { EngineEvents } from "../live/engine-events.ts";
import type { LiveSandbox } from "../live/live-sandbox.ts";
import type { OpenExec } from "../live/open-exec.ts";
import { commandTitle } from "../model/command-title.ts";
import { viewExec } from "../model/exec-outcome.ts";
import type { EngineContext } from "../ports/context.ts";
import {
  type Commit,
  type Idempotency,
  type KeeperExec,
  type Link,
  type NewEvent,
  StoreConflict,
} from "../ports/index.ts";
import type { ExecRecord } from "../ports/records.ts";
import { AwaitedReaders } from "./awaited-readers.ts";
import { ExecDispatch } from "./exec-dispatch.ts";
import { ExecFinish, type KillAttribution } from "./exec-finish.ts";
import { ExecQueue } from "./exec-queue.ts";
import { ExecReconcile } from "./exec-reconcile.ts";
import type { Retention } from "./exec-retention.ts";
import { isOfOtherMemory, OpenExecs } from "./open-execs.ts";
import { OutputHolds } from "./output-holds.ts";

interface StartOptions {
  idempotency: Idempotency | undefined;
  link: Link;
  /** Whether the caller waits for the end of the exec and is answered only then. */
  awaited: boolean;
  /** Whether the caller is expected to read the output from the start. */
  expectsReader?: boolean;
  /** Changes and events to store in the same commit as the start. */
  also?: StartExtras;
  /** Whether the exec is exempt from the sandbox's `maxExecs`. */
  isUncounted?: boolean;
  /** Whether the call resolves as soon as the exec is stored, without waiting for the keeper. */
  isUnwaited?: boolean;
}

/** Changes and events that are stored in the same commit as an exec's start. */
export type StartExtras = Pick<Commit, "changes"> & Required<Pick<Commit, "events">>;

/**
 * A run that a keeper began by itself. `known` is the run as the keeper lists it; it is null if the keeper's memory is
 * lost and only the journal remains.
 */
export interface FoundRun {
  record: ExecRecord;
  known: KeeperExec | null;
}

/**
 * The ledger of execs. Each exec takes two commits: one before the keeper receives the exec, and one with its outcome.
 * Between these commits the keeper's journal is authoritative for the state of the exec, so the ledger asks the keeper.
 * The queue, the dispatch to the keeper, the comparison with the keeper and the end of an exec each have a class of
 * their own.
 */
export class ExecLedger {
  readonly holds: OutputHolds;
  readonly awaitedReaders: AwaitedReaders;
  readonly #context: EngineContext;
  readonly #open: OpenExecs;
  readonly #finish: ExecFinish;
  readonly #dispatch: ExecDispatch;
  readonly #queue: ExecQueue;
  readonly #reconcile: ExecReconcile;

  constructor(
    context: EngineContext,
    events: EngineEvents,
    retention: Retention,
    killAttribution: KillAttribution,
  ) {
    const open = new OpenExecs(context);
    const finish = new ExecFinish(context, { open, retention, killAttribution, events });
    const holds = new OutputHolds(context);
    const dispatch = new ExecDispatch(context, open, finish, holds);
    const queue = new ExecQueue(context, open, finish, dispatch);
    this.holds = holds;
    this.awaitedReaders = new AwaitedReaders(context, (id) => open.get(id));
    this.#context = context;
    this.#open = open;
    this.#finish = finish;
    this.#dispatch = dispatch;
    this.#queue = queue;
    this.#reconcile = new ExecReconcile({ open, finish, dispatch, queue, retention, events });
    events.execClosed.subscribe(({ live }) => queue.advance(live));
    events.execClosed.subscribe((exec) => holds.closed(exec));
    events.keeperEndedExec.subscribe((live, exec) => this.exited(live, exec));
    events.linkUp.subscribe((live, link, signal) => this.#reconcile.reconcile(live, link, signal));
    events.processesEnded.subscribe((live, { status, cause }) => this.endAll(live, status, cause));
  }

  get runningCount(): number {
    return this.#open.runningCount;
  }

  get queuedCount(): number {
    return this.#open.queuedCount;
  }

  open(id: ExecId): OpenExec | undefined {
    return this.#open.get(id);
  }

  view(record: ExecRecord): Exec {
    const open = this.#open.get(record.id);
    const stage = open?.stage ?? null;
    const isSuspended = open?.live.isAsleep ?? false;
    return viewExec(open?.record ?? record, { stage, isSuspended }, this.#context.numbers.execRetentionMs);
  }

  /**
   * Stores the exec and sends it to the keeper. Resolves when the keeper has received the exec, when the exec has
   * ended, or after a deadline. If the exec is queued, resolves as soon as it is stored. The start is stored before the
   * keeper receives it, so that the next server knows of the exec if this server is killed. The commit also survives a
   * crash of the host, except if the caller is answered only at the end of the exec (`awaited`) and gave no idempotency
   * key. In that case a crash of the host ends the command anyway, and the caller has no answer yet that could become
   * wrong.
   */
  async start(live: LiveSandbox, order: ExecRecord, options: StartOptions): Promise<OpenExec> {
    const { clock, numbers } = this.#context;
    if (this.#open.get(order.id) !== undefined) throw new StoreConflict("exec_exists");
    const turn = this.#queue.admit(live);
    const record: ExecRecord = { ...order, status: turn === "now" ? "starting" : "queued" };
    const exec = this.#open.enter(live, record, options);
    if (turn === "queued") this.#open.enqueue(exec);
    if (!options.isUncounted) live.countExec();
    await this.#storeStart(exec, options);
    live.touch();
    this.awaitedReaders.expect(exec);
    if (exec.isQueued) {
      this.#queue.advance(live);
      return exec;
    }
    void this.#dispatch.send(exec, options.link);
    if (!exec.isAcknowledged && !options.isUnwaited)
      await soonest(clock, numbers.execStartDeadlineMs, exec.begun);
    return exec;
  }

  async #storeStart(exec: OpenExec, options: StartOptions): Promise<void> {
    const { idempotency, awaited, also = NO_EXTRAS } = options;
    const { record } = exec;
    try {
      await this.#context.store.commit({
        changes: [
          ...also.changes,
          { kind: "exec.insert", record, idempotency, execsStarted: limitedCount(exec.live) },
        ],
        events: [...also.events, this.#startEvent(record)],
        counters: { execsStarted: 1 },
        outlives: awaited && idempotency === undefined ? "server" : "host",
      });
      exec.markStored();
    } catch (error) {
      this.#withdraw(exec);
      throw error instanceof StoreConflict ? error : storeFailure(error, record);
    }
  }

  #startEvent({ id: execId, sandboxId, generation, createdAt: at, spec }: ExecRecord): NewEvent {
    const title = commandTitle(spec.argv, this.#context.numbers.eventCommandChars);
    return { at, type: "exec.started", sandboxId, execId, generation, message: `exec ${title}` };
  }

  /** Removes an exec that could not be stored. */
  #withdraw(exec: OpenExec): void {
    this.#open.leave(exec);
    exec.markNotStored();
  }

  /**
   * Records runs that a keeper began by itself, in one commit with the given changes. The runs have already begun, so
   * they neither wait in the queue nor count against `maxExecs`.
   */
  async take(live: LiveSandbox, runs: readonly FoundRun[], also: StartExtras): Promise<void> {
    const execs = runs.map(({ record, known }) => ({ exec: this.#open.enter(live, record), known }));
    try {
      await this.#context.store.commit({
        changes: [...also.changes, ...runs.map(({ record }) => ({ kind: "exec.insert", record }) as const)],
        events: [...also.events, ...runs.map(({ record }) => this.#startEvent(record))],
        counters: { execsStarted: runs.length },
      });
    } catch (error) {
      for (const { exec } of execs) this.#withdraw(exec);
      throw error;
    }
    for (const { exec } of execs) exec.markStored();
    for (const { exec, known } of execs) {
      if (known === null) void this.#finish.lose(exec);
      else this.#dispatch.acknowledge(exec, known);
    }
  }

  expireQueued(now: number): void {
    this.#queue.expire(now);
  }

  /** Ends an exec that is still queued; returns false if the exec has left the queue. */
  cancelQueued(exec: OpenExec): boolean {
    return this.#queue.cancel(exec);
  }

  /**
   * Called by the link for every exec that ends while the link is up. The keeper of a fork may report exec ids of the
   * source sandbox, which are ignored.
   */
  exited(live: LiveSandbox, known: KeeperExec): void {
    const exec = this.#open.get(known.id);
    // A report on an exec that is not stored yet is ignored: once the exec is stored, the keeper is asked about it.
    if (exec?.live !== live || !exec.isStored) return;
    this.#dispatch.acknowledge(exec, known);
  }

  /** Compares the open execs of a sandbox with those that its keeper lists. Runs on every new link. */
  reconcile(live: LiveSandbox, link: Link, signal: AbortSignal): Promise<void> {
    return this.#reconcile.reconcile(live, link, signal);
  }

  /**
   * Compares the execs that the keeper has acknowledged with the keeper's list. Called again and again while a link is
   * up, because the keeper's report of the end of an exec may be lost.
   */
  compare(live: LiveSandbox, link: Link, signal: AbortSignal): Promise<void> {
    return this.#reconcile.compare(live, link, signal);
  }

  /**
   * Takes over an exec that an earlier server left without an outcome. On the next link the keeper is asked for the
   * exec's state. An exec that is stored as queued may already have been sent to the keeper, because leaving the queue
   * is not stored.
   */
  adopt(live: LiveSandbox, record: ExecRecord): void {
    const exec = this.#open.enter(live, record);
    exec.markStored();
    exec.markMaybeSent();
    exec.markJournal(isForked(record, live));
    if (isOfOtherMemory(record, live)) void this.#finish.lose(exec);
  }

  /**
   * Finds out which adopted execs exist in the saved memory of a sandbox in standby. The journals on disk show it; the
   * keeper can't be asked, because it is in standby too.
   */
  async checkAsleep(live: LiveSandbox): Promise<void> {
    for (const exec of [...live.openExecs].filter((each) => each.awaitsKeeper)) {
      const trace = await this.#finish.trace(exec.record);
      exec.markJournal(trace !== "no journal" && trace !== "not looked for");
    }
  }

  /** Ends an exec that an earlier server left open, if the sandbox of the exec no longer has a record. */
  abandon(record: ExecRecord): Promise<void> {
    return this.#finish.abandon(record);
  }

  /** Ends all execs of a sandbox whose processes are gone. Afterwards the sandbox's journals are final. */
  async endAll(live: LiveSandbox, status: "lost" | "cancelled", cause: Cause): Promise<void> {
    const open = [...live.openExecs];
    for (const exec of open) void this.#finish.endUnseen(exec, status, cause);
    // Execs that were already ending are awaited too, so that afterwards no exec of the sandbox is open.
    await Promise.all(open.map(({ over }) => over.promise));
  }

  /**
   * Returns the execs that have outlived their timeout, as a backstop for a keeper that fails to enforce it. Must be
   * called once per maintenance round, because the running time of an exec is computed from the number of calls that
   * saw it running: the difference of two clock readings would be wrong after the clock was set. The count restarts
   * with each new link, because the sandbox may have been suspended between two links, and the keeper's clock stands
   * still meanwhile.
   */
  overdue(): OpenExec[] {
    const { execTimeoutGraceMs, maintainEveryMs } = this.#context.numbers;
    return this.#open.all().filter((exec) => {
      const { timeoutMs } = exec.record.spec;
      if (timeoutMs === null || exec.record.startedAt === null) return false;
      return exec.countRunning(exec.live.link, maintainEveryMs) > timeoutMs + execTimeoutGraceMs;
    });
  }
}

const NO_EXTRAS: StartExtras = { changes: [], events: [] };

/**
 * Returns the exec count to store in the same commit as the exec. Returns undefined if the sandbox has no exec limit:
 * the count is then stored later, together with others, because each additional row makes a commit slower.
 */
const limitedCount = ({ record }: LiveSandbox): number | undefined =>
  record.spec.lifecycle.maxExecs === undefined ? undefined : record.execsStarted;

/**
 * Whether the sandbox is a fork and the exec is one that came with the checkpoint's memory. Such an exec already runs,
 * so no keeper is ever asked to start it.
 */
const isForked = ({ id }: ExecRecord, { record }: LiveSandbox): boolean =>
  record.forkedFrom?.execs.some((exec) => exec.id === id) ?? false;

const storeFailure = (error: unknown, { sandboxId, id }: ExecRecord) =>
  new HoldfastError("internal", {
    message: "The exec could not be recorded, so it was not started.",
    sandboxId,
    execId: id,
    cause: error,
  });
