import { type Cause, causeOf, type Exec, type ExecId, HoldfastError } from "@holdfast/contract";
import type { Cell } from "./cell.ts";
import { aborted, soonest, within } from "./clock.ts";
import { ended, type Outcome, outcomeOf, type Trace, unseenEnd, viewExec } from "./exec.ts";
import { isAwaited, type OpenExec, openExec, REACHED, stageOf } from "./open-exec.ts";
import {
  type Commit,
  type ExecOrder,
  type Idempotency,
  type KeeperExec,
  KeeperRefusal,
  type KeepPolicy,
  type Link,
  LinkLost,
  type NewEvent,
  StoreConflict,
} from "./ports.ts";
import { PROOF_EXEC_PREFIX } from "./prover.ts";
import type { ExecRecord } from "./records.ts";
import type { Retention } from "./retention.ts";
import type { World } from "./world.ts";

export interface StartOptions {
  idempotency: Idempotency | undefined;
  link: Link;
  /** The caller hears nothing of the exec before its end. */
  awaited: boolean;
  /** Stored with it, in the same commit. */
  also?: Also;
  /** It is not one of the steps that callers may take. */
  isUncounted?: boolean;
  /** Resolves once it is stored and on its way. */
  isUnwaited?: boolean;
}

/** What else belongs into the commit of a start. */
export type Also = Pick<Commit, "changes"> & Required<Pick<Commit, "events">>;

/** What the ledger asks about execs that are runs of named processes, and tells of them. */
export interface Runs {
  /** How the keeper is to start it again; null where it is not. */
  policyOf(exec: OpenExec): KeepPolicy | null;
  /** Whether that is what the last run of a process of this sandbox is called, or a later one. */
  isOf(cell: Cell, id: ExecId): boolean;
  /** All that a keeper has: those that it has begun by itself are put on record. Never rejects. */
  found(cell: Cell, known: readonly KeeperExec[], link: Link, signal: AbortSignal): Promise<void>;
  over(exec: OpenExec): void;
}

const NO_RUNS: Runs = {
  policyOf: () => null,
  isOf: () => false,
  found: async () => undefined,
  over: () => undefined,
};

/** A run that a keeper has begun by itself, and what that says of it; null where its memory is gone, and only the journal is left. */
export interface FoundRun {
  record: ExecRecord;
  known: KeeperExec | null;
}

/**
 * The ledger of execs. Two commits per exec: one before the keeper hears of it, one with its outcome; what lies
 * between is asked of the keeper, whose journal is the truth. A start is sent again only to a keeper with the
 * same memory, which knows by id whether it has run it, so a lost answer never runs a command twice. So many run at a
 * time in a sandbox; the rest wait in the order they came. Every exec ends exactly once: here, in `#finish`.
 */
export class Ledger {
  readonly #world: World;
  readonly #retention: Retention;
  readonly #open = new Map<ExecId, OpenExec>();
  readonly #onKilled: (cell: Cell) => Promise<Cause | null>;
  #queued = 0;
  /** Told of every end that was stored. */
  onEnd: (record: ExecRecord) => void = () => undefined;
  runs: Runs = NO_RUNS;

  constructor(world: World, retention: Retention, onKilled: (cell: Cell) => Promise<Cause | null>) {
    this.#world = world;
    this.#retention = retention;
    this.#onKilled = onKilled;
  }

  get runningCount(): number {
    return this.#open.size - this.#queued;
  }
  get queuedCount(): number {
    return this.#queued;
  }

  open(id: ExecId): OpenExec | undefined {
    return this.#open.get(id);
  }

  openOf(cell: Cell): OpenExec[] {
    return [...cell.openExecs];
  }

  view(record: ExecRecord): Exec {
    const open = this.#open.get(record.id);
    const stage = open === undefined ? null : stageOf(open);
    const isSuspended = open?.cell.isAsleep ?? false;
    return viewExec(open?.record ?? record, { stage, isSuspended }, this.#world.numbers.execRetentionMs);
  }

  /** Whether an exec of this sandbox could run now; refuses where not even the waiting line has room. */
  admit(cell: Cell): "now" | "queued" {
    const { execsPerSandbox, execsQueuedPerSandbox } = this.#world.numbers;
    if (hasRoom(cell, execsPerSandbox) && cell.queuedExecs.size === 0) return "now";
    if (cell.queuedExecs.size < execsQueuedPerSandbox) return "queued";
    const message = `The sandbox has ${execsPerSandbox} execs under way and ${execsQueuedPerSandbox} that wait for their turn.`;
    throw new HoldfastError("too_many_execs", { sandboxId: cell.id, message });
  }

  /**
   * Stores the exec, sends it, and resolves when the keeper has it, when it has ended, or when that takes too long; one
   * that must wait for its turn resolves once it is stored.
   *
   * The start is stored before the keeper hears of it, so that a killed server is followed by one that knows of it. Where
   * nobody is told of it before its end, that is all it has to survive: the end of the host ends the command as well,
   * and the outcome's own commit is the first thing that anybody was promised.
   */
  async start(cell: Cell, order: ExecRecord, options: StartOptions): Promise<OpenExec> {
    const { clock, numbers } = this.#world;
    if (this.#open.has(order.id)) throw new StoreConflict("exec_exists");
    const turn = this.admit(cell);
    const exec = this.#enter(cell, { ...order, status: turn === "now" ? "starting" : "queued" });
    if (turn === "queued") this.#enqueue(exec);
    if (!options.isUncounted) cell.countExec();
    await this.#storeStart(exec, options);
    cell.touch();
    if (exec.queued) {
      this.#advance(cell);
      return exec;
    }
    void this.#dispatch(exec, options.link);
    if (!exec.acknowledged && !options.isUnwaited)
      await soonest(clock, numbers.execStartDeadlineMs, exec.begun.signal);
    return exec;
  }

  async #storeStart(exec: OpenExec, options: StartOptions): Promise<void> {
    const { idempotency, awaited, also = NOTHING_ELSE } = options;
    const { record } = exec;
    try {
      await this.#world.store.commit({
        changes: [
          ...also.changes,
          { kind: "exec.insert", record, idempotency, execsStarted: limitedCount(exec.cell) },
        ],
        events: [...also.events, started(record)],
        counters: { execsStarted: 1 },
        outlives: awaited && idempotency === undefined ? "server" : "host",
      });
      exec.stored = true;
    } catch (error) {
      this.#withdraw(exec);
      throw error instanceof StoreConflict ? error : storeFailure(error, record);
    } finally {
      exec.storing.abort(REACHED);
    }
  }

  /** It turned out not to exist. */
  #withdraw(exec: OpenExec): void {
    this.#leave(exec);
    exec.over.abort(REACHED);
  }

  /**
   * Takes up what a keeper has begun by itself, in one commit with what belongs to it. It runs already: neither a place in
   * the line nor a step of the caller's is asked for.
   */
  async take(cell: Cell, runs: readonly FoundRun[], also: Also): Promise<void> {
    const execs = runs.map(({ record, known }) => ({ exec: this.#enter(cell, record), known }));
    try {
      await this.#world.store.commit({
        changes: [...also.changes, ...runs.map(({ record }) => ({ kind: "exec.insert", record }) as const)],
        events: [...also.events, ...runs.map(({ record }) => started(record))],
        counters: { execsStarted: runs.length },
      });
    } catch (error) {
      for (const { exec } of execs) this.#withdraw(exec);
      throw error;
    } finally {
      for (const { exec } of execs) exec.storing.abort(REACHED);
    }
    for (const { exec, known } of execs) {
      exec.stored = true;
      if (known === null) void this.lose(exec, KEEPER_FORGOT);
      else this.#acknowledge(exec, known);
    }
  }

  #enter(cell: Cell, record: ExecRecord): OpenExec {
    const exec = openExec(this.#world, cell, record);
    this.#open.set(record.id, exec);
    cell.openExecs.add(exec);
    return exec;
  }

  #enqueue(exec: OpenExec): void {
    exec.queued = true;
    exec.cell.queuedExecs.add(exec);
    this.#queued += 1;
  }

  #leave(exec: OpenExec): void {
    this.#dequeue(exec);
    this.#open.delete(exec.record.id);
    exec.cell.openExecs.delete(exec);
  }

  #dequeue(exec: OpenExec): void {
    if (!exec.queued) return;
    exec.queued = false;
    exec.cell.queuedExecs.delete(exec);
    this.#queued -= 1;
  }

  /** Gives those that waited longest their turn, as far as there is room. */
  #advance(cell: Cell): void {
    const { execsPerSandbox } = this.#world.numbers;
    for (const exec of cell.queuedExecs) {
      if (!hasRoom(cell, execsPerSandbox) || cell.refusal() !== null) return;
      if (!exec.stored) continue;
      this.#dequeue(exec);
      void this.#dispatch(exec, null);
    }
  }

  /** Ends those that waited too long for their turn: an exec that never started is better than one that never answers. */
  expireQueued(now: number): void {
    const { execQueueMs } = this.#world.numbers;
    if (this.#queued === 0) return;
    for (const exec of this.#open.values()) {
      if (!exec.queued || !exec.stored || now < exec.record.createdAt + execQueueMs) continue;
      const message = `No other exec of the sandbox ended within ${execQueueMs} ms, so this one was never started.`;
      const cause = { code: "queue_timeout", message };
      void this.#finish(exec, unseenEnd("refused", exec.record, cause, now, "no journal"));
    }
  }

  /** Ends one that still waits; false where it has had its turn. */
  cancelQueued(exec: OpenExec): boolean {
    if (!exec.queued || !exec.stored) return false;
    const cause = { code: "cancelled", message: "The command was cancelled before it was started." };
    void this.#finish(
      exec,
      unseenEnd("cancelled", exec.record, cause, this.#world.clock.now(), "no journal"),
    );
    return true;
  }

  /** Sends the start until a keeper of the exec's generation answers. Ends with an answer, or with the exec. */
  async #dispatch(exec: OpenExec, first: Link | null): Promise<void> {
    const { clock, numbers, stopping, log } = this.#world;
    exec.dispatching = true;
    let link = first;
    try {
      while (!stopping.aborted && !exec.finishing && !exec.acknowledged) {
        try {
          link ??= (await exec.cell.links?.get(numbers.createDeadlineMs, stopping)) ?? null;
          if (link === null || exec.finishing || exec.acknowledged) return;
          if (isOfOtherMemory(exec.record, exec.cell)) return;
          const answer = await this.#send(exec, link, stopping);
          this.#acknowledge(exec, answer.exec);
          return;
        } catch (error) {
          const isRefusal = error instanceof KeeperRefusal;
          if (isRefusal && !(exec.sent && link !== null && (await this.#mayBeThere(exec, link))))
            return await this.#refused(exec, error);
          exec.sent = true;
          if (exec.cell.refusal() !== null) return;
          // Where not even a link came, the next one has to be waited for.
          const wasLost = link !== null && error instanceof LinkLost;
          link = null;
          if (wasLost) continue;
          log.debug({ exec: exec.record.id, cause: causeOf(error) }, "a start is sent again");
          await clock.sleep(START_PAUSE_MS, stopping).catch(() => undefined);
        }
      }
    } finally {
      exec.dispatching = false;
    }
  }

  #send(exec: OpenExec, link: Link, signal: AbortSignal) {
    const policy = this.runs.policyOf(exec);
    const order = this.#order(exec.record);
    return policy === null ? link.startExec(order, signal) : link.keepExec(order, policy, signal);
  }

  /**
   * Whether a start of which no answer came has reached the keeper after all: a refusal of the next one says nothing
   * about it. Not being able to ask counts as yes, and leads to another try.
   */
  async #mayBeThere(exec: OpenExec, link: Link): Promise<boolean> {
    try {
      const known = (await link.listExecs(this.#world.stopping)).find(({ id }) => id === exec.record.id);
      if (known !== undefined) this.#acknowledge(exec, known);
      return known !== undefined;
    } catch {
      return true;
    }
  }

  #order(record: ExecRecord): ExecOrder {
    const { id, spec, digest } = record;
    const { argv, env, cwd, user, tty } = spec;
    const journalCapBytes = this.#world.numbers.journalCapBytes;
    return {
      id,
      argv,
      env,
      cwd,
      user,
      timeoutMs: spec.timeoutMs ?? 0,
      stdin: spec.stdin !== null,
      tty,
      journalCapBytes,
      digest,
    };
  }

  /** A start that may have come before, and finds its own journal there, has; only who sends it for the first time is refused by another's. */
  async #refused(exec: OpenExec, refusal: KeeperRefusal): Promise<void> {
    if (exec.sent && refusal.reason === "exec_conflict") return this.lose(exec, KEEPER_FORGOT);
    const cause = { code: refusal.errno ?? refusal.reason, message: refusal.message };
    await this.#finish(exec, unseenEnd("refused", exec.record, cause, this.#world.clock.now()));
  }

  #acknowledge(exec: OpenExec, known: KeeperExec): void {
    this.#dequeue(exec);
    if (!exec.acknowledged) {
      exec.acknowledged = true;
      exec.record = { ...exec.record, startedAt: known.startedAt };
      exec.begun.abort(REACHED);
      exec.cell.changed();
      if (known.state === "running") this.#giveStdin(exec);
    }
    if (known.state === "running") return;
    const state = exec.overdue && known.state === "cancelled" ? "timed_out" : known.state;
    void this.#finish(exec, outcomeOf({ ...known, state }));
  }

  #giveStdin(exec: OpenExec): void {
    const { stdin } = exec.record.spec;
    if (stdin === null || (stdin.text === "" && !stdin.end)) return;
    const { stopping, log } = this.#world;
    exec.stdin.begin(stdin.text, stdin.end, stopping).catch((error: unknown) => {
      if (stopping.aborted || exec.finishing) return;
      log.warn({ exec: exec.record.id, cause: causeOf(error) }, "stdin could not be given");
    });
  }

  /** Called by the link for every exec that ends while it is up. A fork's keeper may know ids that are another sandbox's. */
  exited(cell: Cell, known: KeeperExec): void {
    const exec = this.#open.get(known.id);
    // What is not on record yet is asked for again when it is.
    if (exec?.cell !== cell || !exec.stored) return;
    this.#acknowledge(exec, known);
  }

  /**
   * Compares the open execs of a sandbox with what its keeper has, on every new link: ends what ended meanwhile,
   * sends again what never arrived, and calls lost what the keeper had and no longer knows.
   */
  async reconcile(cell: Cell, link: Link, signal: AbortSignal): Promise<void> {
    const listed = await link.listExecs(signal);
    const known = new Map(listed.map((exec) => [exec.id, exec]));
    await this.runs.found(cell, listed, link, signal);
    for (const exec of this.openOf(cell).filter(({ stored }) => stored)) {
      const there = known.get(exec.record.id);
      if (there !== undefined) this.#acknowledge(exec, there);
      else if (isOfOtherMemory(exec.record, cell) || exec.acknowledged || exec.arrived)
        void this.lose(exec, KEEPER_FORGOT);
      else if (exec.queued || exec.dispatching) continue;
      else if (exec.record.status === "queued") this.#enqueue(exec);
      else void this.#dispatch(exec, null);
    }
    this.#advance(cell);
    const others = listed.filter(({ id }) => this.#open.get(id)?.cell !== cell);
    await this.#sort(cell, others, link, signal);
  }

  /** What a keeper has beyond the open execs of its sandbox: proofs and what is nobody's go, the rest is kept there. */
  async #sort(cell: Cell, execs: readonly KeeperExec[], link: Link, signal: AbortSignal): Promise<void> {
    const isProof = ({ id }: KeeperExec) => id.startsWith(PROOF_EXEC_PREFIX);
    const named = execs.filter((exec) => !isProof(exec));
    const strangers = await this.#retention.strangers(
      cell,
      named.map(({ id }) => id).filter((id) => !this.runs.isOf(cell, id)),
    );
    for (const exec of execs.filter((each) => isProof(each) || strangers.has(each.id))) {
      if (exec.state !== "running")
        link.forgetExec(exec.id, { keepJournal: false }, signal).catch(() => undefined);
      else if (!isProof(exec)) link.cancelExec(exec.id, signal).catch(() => undefined);
    }
    const kept = named
      .filter(({ id, state }) => state !== "running" && !strangers.has(id))
      .sort((a, b) => a.endedAt - b.endedAt);
    this.#retention.inKeeper(
      cell,
      kept.map(({ id }) => id),
    );
  }

  /**
   * Asks a keeper after the execs that it is known to have. Ends are announced, but an announcement can be lost on a link
   * that goes on: this asks for the truth, and the announcement only saves time.
   */
  async compare(cell: Cell, link: Link, signal: AbortSignal): Promise<void> {
    const sure = this.openOf(cell).filter((exec) => exec.acknowledged && !exec.finishing);
    if (sure.length === 0 && !cell.hasLiveProcess) return;
    const listed = await link.listExecs(signal);
    const known = new Map(listed.map((exec) => [exec.id, exec]));
    await this.runs.found(cell, listed, link, signal);
    for (const exec of sure) {
      const there = known.get(exec.record.id);
      if (there !== undefined) this.#acknowledge(exec, there);
      else if (cell.links?.current === link) void this.lose(exec, KEEPER_FORGOT);
    }
  }

  /**
   * Execs of an earlier server that have no outcome yet; the next link tells what became of them. Also of one that is
   * stored as queued: its turn may have come without being stored.
   */
  adopt(cell: Cell, record: ExecRecord): void {
    const exec = this.#enter(cell, record);
    exec.stored = true;
    exec.sent = true;
    exec.arrived = isForked(record, cell);
    if (isOfOtherMemory(record, cell)) void this.lose(exec, KEEPER_FORGOT);
  }

  /** Of a sandbox that sleeps no link tells which of these execs its memory has; their journals do. */
  async lookAsleep(cell: Cell): Promise<void> {
    for (const exec of this.openOf(cell).filter(isAwaited)) {
      const trace = await this.#trace(exec.record);
      exec.arrived = trace !== "no journal" && trace !== "not looked for";
    }
  }

  /** Ends an exec of an earlier server whose sandbox is not even on record any more. */
  async abandon(record: ExecRecord): Promise<void> {
    const cause = { code: "sandbox_gone", message: "The sandbox was gone before the outcome was known." };
    const trace = await this.#trace(record);
    await this.#store(ended(record, unseenEnd("lost", record, cause, this.#world.clock.now(), trace)));
  }

  /** Ends the execs of a sandbox that is no more. Its processes are gone: what its journals say now is final. */
  async endAll(cell: Cell, status: "lost" | "cancelled", cause: Cause): Promise<void> {
    const open = this.openOf(cell);
    for (const exec of open) void this.#endUnseen(exec, status, cause);
    // Also those that were ending by themselves: after this, nothing of the sandbox is open.
    await Promise.all(open.map((exec) => aborted(exec.over.signal)));
  }

  lose(exec: OpenExec, cause: Cause): Promise<void> {
    return this.#endUnseen(exec, "lost", cause);
  }

  async #endUnseen(exec: OpenExec, status: "lost" | "cancelled", cause: Cause): Promise<void> {
    const trace = exec.queued ? "no journal" : await this.#trace(exec.record);
    await this.#finish(exec, unseenEnd(status, exec.record, cause, this.#world.clock.now(), trace));
  }

  /** What the journal on disk tells. Not being able to look is no news about the exec. */
  async #trace({ sandboxId, id }: ExecRecord): Promise<Trace> {
    const { clock, journals, log } = this.#world;
    try {
      const limit = { ms: TRACE_MS, what: "reading the journal" };
      return (await within(clock, limit, (signal) => journals.end(sandboxId, id, signal))) ?? "no journal";
    } catch (error) {
      log.warn({ sandbox: sandboxId, exec: id, cause: causeOf(error) }, "a journal could not be read");
      return "not looked for";
    }
  }

  async #finish(exec: OpenExec, outcome: Outcome): Promise<void> {
    if (exec.finishing) return;
    exec.finishing = true;
    const told = await this.#explained(exec, outcome);
    const record = ended(exec.record, told);
    await this.#store(record);
    exec.record = record;
    this.#leave(exec);
    // What held the sandbox awake, or kept it from being deleted, was use of it up to now.
    const { idleTtlMs } = exec.cell.record.spec.lifecycle;
    if (record.spec.keepAwake || idleTtlMs !== undefined) exec.cell.touch();
    exec.over.abort(REACHED);
    exec.begun.abort(REACHED);
    this.#retention.ended(exec.cell, record, { mayComeAgain: exec.sent });
    this.#advance(exec.cell);
    this.runs.over(exec);
  }

  /** A command that was killed from outside may have been killed for memory: then the outcome says so. */
  async #explained(exec: OpenExec, outcome: Outcome): Promise<Outcome> {
    const killed = outcome.status === "exited" && (outcome.signal === "SIGKILL" || outcome.exitCode === 137);
    if (!killed) return outcome;
    const cause = await this.#onKilled(exec.cell).catch(() => null);
    return cause === null ? outcome : { ...outcome, cause };
  }

  /** An outcome is never dropped because the store is unwell: it is offered again until it is taken. */
  async #store(record: ExecRecord): Promise<void> {
    const { store, clock, log, stopping } = this.#world;
    const { id: execId, sandboxId, generation, status, exitCode, signal, cause } = record;
    const at = record.endedAt ?? clock.now();
    const message = describeEnd(record);
    const event = {
      at,
      type: "exec.ended",
      sandboxId,
      execId,
      generation,
      message,
      data: { status, exitCode, signal, cause },
    } as const;
    log.info({ sandbox: sandboxId, generation, exec: execId, status, exitCode, signal, cause }, "exec ended");
    for (;;) {
      try {
        await store.commit({
          changes: [{ kind: "exec.end", record }],
          events: [event],
          counters: { execsEnded: 1 },
        });
        return this.onEnd(record);
      } catch (error) {
        if (error instanceof StoreConflict || stopping.aborted) {
          log.error({ exec: execId, cause: causeOf(error) }, "an outcome could not be stored");
          return;
        }
        log.error({ exec: execId, cause: causeOf(error) }, "an outcome is stored again");
        await clock.sleep(1_000, stopping).catch(() => undefined);
      }
    }
  }

  /**
   * The keeper enforces timeouts; this is the backstop for one that doesn't, asked once in every round of maintenance. It
   * counts rounds in which an exec was seen to run, not the time of day, which can be set. The keeper's own clock counts
   * lived time only, so the count begins anew with each link: while there was none, it may not have lived.
   */
  overdue(): OpenExec[] {
    const { execTimeoutGraceMs, maintainEveryMs } = this.#world.numbers;
    return [...this.#open.values()].filter((exec) => {
      const { timeoutMs } = exec.record.spec;
      const link = exec.cell.links?.current ?? null;
      if (timeoutMs === null || exec.record.startedAt === null) return false;
      const isFirst = link === null || exec.seen?.link !== link;
      const ms = isFirst ? 0 : (exec.seen?.ms ?? 0) + maintainEveryMs;
      exec.seen = link === null ? null : { link, ms };
      return ms > timeoutMs + execTimeoutGraceMs;
    });
  }
}

const NOTHING_ELSE: Also = { changes: [], events: [] };

const started = ({ id: execId, sandboxId, generation, createdAt: at, spec }: ExecRecord): NewEvent => {
  const message = `exec ${spec.argv.join(" ").slice(0, 200)}`;
  return { at, type: "exec.started", sandboxId, execId, generation, message };
};

const TRACE_MS = 5_000;
const START_PAUSE_MS = 200;

/** Other sandboxes' counts are stored in batches: a commit's price is what it touches. */
const limitedCount = ({ record }: Cell): number | undefined =>
  record.spec.lifecycle.maxExecs === undefined ? undefined : record.execsStarted;

/** Execs live as long as the memory that they began in, whatever generation it has come back as. */
const isOfOtherMemory = ({ generation }: ExecRecord, { record }: Cell): boolean =>
  generation < record.memorySince;

/** It was begun elsewhere, and came with the memory: no keeper is ever asked to start it. */
const isForked = ({ id }: ExecRecord, { record }: Cell): boolean =>
  record.forkedFrom?.execs.some((exec) => exec.id === id) ?? false;

const hasRoom = ({ openExecs, queuedExecs }: Cell, limit: number): boolean =>
  openExecs.size - queuedExecs.size < limit;

const KEEPER_FORGOT: Cause = {
  code: "keeper_restarted",
  message: "The keeper that ran the command is gone; its outcome is unknown.",
};

const storeFailure = (error: unknown, { sandboxId, id }: ExecRecord) =>
  new HoldfastError("internal", {
    message: "The exec could not be recorded, so it was not started.",
    sandboxId,
    execId: id,
    cause: error,
  });

function describeEnd({ status, exitCode, signal, cause }: ExecRecord): string {
  if (status !== "exited") return `exec ${status}`;
  const how = signal === null ? `exec exited with ${exitCode}` : `exec ended by ${signal}`;
  return cause === null ? how : `${how}: ${cause.message}`;
}
