import {
  type Cause,
  causeOf,
  type Exec,
  type ExecId,
  HoldfastError,
  isTerminal,
  type SandboxId,
} from "@holdfast/contract";
import type { Cell } from "./cell.ts";
import { within } from "./clock.ts";
import { ended, type Outcome, outcomeOf, unseenEnd, viewExec } from "./exec.ts";
import {
  type ExecOrder,
  type Idempotency,
  type KeeperExec,
  KeeperRefusal,
  type Link,
  LinkLost,
  StoreConflict,
} from "./ports.ts";
import { PROOF_EXEC_PREFIX } from "./prover.ts";
import type { ExecRecord } from "./records.ts";
import type { World } from "./world.ts";

/** An exec without an outcome. */
export interface OpenExec {
  record: ExecRecord;
  readonly cell: Cell;
  /** The keeper has said that it has it. */
  acknowledged: boolean;
  /** A start is being sent; only that loop decides whether to send again. */
  dispatching: boolean;
  finishing: boolean;
  readonly settled: PromiseWithResolvers<ExecRecord>;
  readonly started: PromiseWithResolvers<void>;
}

/**
 * The ledger of execs. Two commits per exec: one before the keeper hears of it, one with its outcome; what lies
 * between is asked of the keeper, whose journal is the truth. A start is sent again only to a keeper of the same
 * generation, which knows by id whether it has run it, so a lost answer never runs a command twice. Every exec ends
 * exactly once: here, in `#finish`.
 */
export class Ledger {
  readonly #world: World;
  readonly #open = new Map<ExecId, OpenExec>();
  /** Ended execs whose journals the keeper still has, oldest first, per sandbox. */
  readonly #kept = new Map<SandboxId, ExecId[]>();
  readonly #onKilled: (cell: Cell) => Promise<Cause | null>;

  constructor(world: World, onKilled: (cell: Cell) => Promise<Cause | null>) {
    this.#world = world;
    this.#onKilled = onKilled;
  }

  get openCount(): number {
    return this.#open.size;
  }

  open(id: ExecId): OpenExec | undefined {
    return this.#open.get(id);
  }

  openOf(cell: Cell): OpenExec[] {
    return [...cell.openExecs];
  }

  view(record: ExecRecord): Exec {
    const open = this.#open.get(record.id);
    return viewExec(open?.record ?? record, open?.acknowledged ?? false);
  }

  /** Stores the exec, sends it, and resolves when the keeper has it, when it has ended, or when that takes too long. */
  async start(
    cell: Cell,
    record: ExecRecord,
    idempotency: Idempotency | undefined,
    link: Link,
  ): Promise<OpenExec> {
    const { store, clock, numbers } = this.#world;
    if (this.#open.has(record.id)) throw new StoreConflict("exec_exists");
    const exec = this.#enter(cell, record);
    const { id: execId, sandboxId, generation, createdAt: at, spec } = record;
    const message = `exec ${spec.argv.join(" ").slice(0, 200)}`;
    try {
      await store.commit({
        changes: [{ kind: "exec.insert", record, idempotency }],
        events: [{ at, type: "exec.started", sandboxId, execId, generation, message }],
        counters: { execsStarted: 1 },
      });
    } catch (error) {
      this.#open.delete(execId);
      cell.openExecs.delete(exec);
      exec.settled.promise.catch(() => undefined);
      exec.settled.reject(error);
      throw error instanceof StoreConflict ? error : storeFailure(error, record);
    }
    cell.touch();
    void this.#dispatch(exec, link);
    if (!exec.acknowledged) {
      const limit = { ms: numbers.execStartDeadlineMs, what: "starting the exec" };
      await within(clock, limit, () => exec.started.promise).catch(() => undefined);
    }
    return exec;
  }

  #enter(cell: Cell, record: ExecRecord): OpenExec {
    const exec: OpenExec = {
      record,
      cell,
      acknowledged: false,
      dispatching: false,
      finishing: false,
      settled: Promise.withResolvers(),
      started: Promise.withResolvers(),
    };
    this.#open.set(record.id, exec);
    cell.openExecs.add(exec);
    return exec;
  }

  /** Sends the start until a keeper of the exec's generation answers. Ends with an answer, or with the exec. */
  async #dispatch(exec: OpenExec, first: Link | null): Promise<void> {
    const { numbers, stopping, log } = this.#world;
    exec.dispatching = true;
    let link = first;
    try {
      while (!stopping.aborted && !isTerminal(exec.record.status) && !exec.finishing) {
        try {
          link ??= (await exec.cell.links?.get(numbers.createDeadlineMs, stopping)) ?? null;
          if (link === null || exec.record.generation !== exec.cell.record.generation) return;
          const answer = await link.startExec(this.#order(exec.record), stopping);
          this.#acknowledge(exec, answer.exec);
          return;
        } catch (error) {
          if (error instanceof KeeperRefusal) return await this.#refused(exec, error);
          if (!(error instanceof LinkLost))
            log.debug({ exec: exec.record.id, cause: causeOf(error) }, "a start is sent again");
          if (exec.cell.refusal() !== null) return;
          link = null;
        }
      }
    } finally {
      exec.dispatching = false;
    }
  }

  #order(record: ExecRecord): ExecOrder {
    const { id, spec, digest } = record;
    const { argv, env, cwd, user } = spec;
    const journalCapBytes = this.#world.numbers.journalCapBytes;
    return {
      id,
      argv,
      env,
      cwd,
      user,
      timeoutMs: spec.timeoutMs ?? 0,
      stdin: spec.stdin !== null,
      journalCapBytes,
      digest,
    };
  }

  async #refused(exec: OpenExec, refusal: KeeperRefusal): Promise<void> {
    const cause = { code: refusal.errno ?? refusal.reason, message: refusal.message };
    await this.#finish(exec, unseenEnd("refused", exec.record, cause, this.#world.clock.now()));
  }

  #acknowledge(exec: OpenExec, known: KeeperExec): void {
    if (!exec.acknowledged) {
      exec.acknowledged = true;
      exec.record = { ...exec.record, startedAt: known.startedAt };
      exec.started.resolve();
      if (exec.record.spec.stdin !== null) void this.#giveStdin(exec);
    }
    if (known.state !== "running") void this.#finish(exec, outcomeOf(known));
  }

  /** Gives the stored stdin from the start; the keeper skips what it has, so repeating it after a lost link is safe. */
  async #giveStdin(exec: OpenExec): Promise<void> {
    const { stdin } = exec.record.spec;
    if (stdin === null) return;
    const { clock, numbers, stopping, log } = this.#world;
    const bytes = Buffer.from(stdin.text, "utf8");
    let offset = 0;
    while (!stopping.aborted && !exec.finishing) {
      try {
        const link = await exec.cell.links?.get(numbers.createDeadlineMs, stopping);
        if (!link) return;
        const data = bytes.subarray(offset, offset + STDIN_CHUNK);
        const last = offset + data.length === bytes.length;
        const { accepted } = await link.writeStdin(
          exec.record.id,
          { offset, data, end: last && stdin.end },
          stopping,
        );
        offset = Math.min(accepted, bytes.length);
        if (last && accepted >= bytes.length) return;
      } catch (error) {
        const refused = error instanceof KeeperRefusal && error.reason !== "limit";
        if (refused) log.warn({ exec: exec.record.id, cause: causeOf(error) }, "stdin could not be given");
        if (refused || exec.cell.refusal() !== null) return;
        // No link for long, or one that is full: the command still waits for its input.
        if (!(error instanceof LinkLost)) await clock.sleep(STDIN_PAUSE_MS, stopping).catch(() => undefined);
      }
    }
  }

  /** Called by the link for every exec that ends while it is up. */
  exited(known: KeeperExec): void {
    const exec = this.#open.get(known.id);
    if (exec === undefined) return;
    this.#acknowledge(exec, known);
  }

  /**
   * Compares the open execs of a sandbox with what its keeper has, on every new link: ends what ended meanwhile,
   * sends again what never arrived, and calls lost what the keeper had and no longer knows.
   */
  async reconcile(cell: Cell, link: Link, signal: AbortSignal): Promise<void> {
    const known = new Map((await link.listExecs(signal)).map((exec) => [exec.id, exec]));
    for (const exec of this.openOf(cell)) {
      const there = known.get(exec.record.id);
      if (there !== undefined) this.#acknowledge(exec, there);
      else if (exec.record.generation !== cell.record.generation || exec.acknowledged)
        void this.lose(exec, KEEPER_FORGOT);
      else if (!exec.dispatching) void this.#dispatch(exec, null);
    }
    const kept = [...known.values()].filter((exec) => exec.state !== "running" && !this.#open.has(exec.id));
    const proofs = kept.filter((exec) => exec.id.startsWith(PROOF_EXEC_PREFIX));
    for (const { id } of proofs) link.forgetExec(id, signal).catch(() => undefined);
    const ids = kept.filter((exec) => !proofs.includes(exec)).sort((a, b) => a.endedAt - b.endedAt);
    this.#kept.set(
      cell.id,
      ids.map((exec) => exec.id),
    );
  }

  /** Execs of an earlier server that have no outcome yet; the next link tells what became of them. */
  adopt(cell: Cell, record: ExecRecord): void {
    const exec = this.#enter(cell, record);
    if (record.generation !== cell.record.generation) void this.lose(exec, KEEPER_FORGOT);
  }

  /** Ends an exec of an earlier server whose sandbox is not even on record any more. */
  async abandon(record: ExecRecord): Promise<void> {
    const cause = { code: "sandbox_gone", message: "The sandbox was gone before the outcome was known." };
    await this.#store(ended(record, unseenEnd("lost", record, cause, this.#world.clock.now())));
  }

  /** Ends the execs of a sandbox that is no more. */
  async endAll(cell: Cell, status: "lost" | "cancelled", cause: Cause): Promise<void> {
    const { clock } = this.#world;
    const open = this.openOf(cell);
    for (const exec of open) void this.#finish(exec, unseenEnd(status, exec.record, cause, clock.now()));
    // Also those that were ending by themselves: after this, nothing of the sandbox is open.
    await Promise.allSettled(open.map((exec) => exec.settled.promise));
    this.#kept.delete(cell.id);
  }

  lose(exec: OpenExec, cause: Cause): Promise<void> {
    return this.#finish(exec, unseenEnd("lost", exec.record, cause, this.#world.clock.now()));
  }

  async #finish(exec: OpenExec, outcome: Outcome): Promise<void> {
    if (exec.finishing) return;
    exec.finishing = true;
    const told = await this.#explained(exec, outcome);
    const record = ended(exec.record, told);
    await this.#store(record);
    exec.record = record;
    this.#open.delete(record.id);
    exec.cell.openExecs.delete(exec);
    exec.settled.resolve(record);
    exec.started.resolve();
    this.#keep(exec);
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
    log.debug({ sandbox: sandboxId, generation, exec: execId, status, exitCode, signal }, "exec ended");
    for (;;) {
      try {
        return await store.commit({
          changes: [{ kind: "exec.end", record }],
          events: [event],
          counters: { execsEnded: 1 },
        });
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

  #keep(exec: OpenExec): void {
    if (exec.cell.refusal() !== null) return;
    const kept = this.#kept.get(exec.cell.id) ?? [];
    if (kept.length === 0) this.#kept.set(exec.cell.id, kept);
    kept.push(exec.record.id);
    if (kept.length < this.#world.numbers.execsKept + FORGOTTEN_AT_ONCE) return;
    const oldest = kept.splice(0, FORGOTTEN_AT_ONCE);
    const link = exec.cell.links?.current;
    for (const id of oldest) {
      link?.forgetExec(id, this.#world.stopping).catch((error: unknown) => {
        // What it left running is still being killed; its turn comes again. After a lost link the keeper is asked anew.
        if (error instanceof KeeperRefusal && error.reason === "exec_running") kept.push(id);
      });
    }
  }

  /** The keeper enforces timeouts; this is the backstop for one that doesn't. */
  overdue(now: number): OpenExec[] {
    const { execTimeoutGraceMs } = this.#world.numbers;
    return [...this.#open.values()].filter(({ record }) => {
      const { timeoutMs } = record.spec;
      return (
        timeoutMs !== null &&
        record.startedAt !== null &&
        now > record.startedAt + timeoutMs + execTimeoutGraceMs
      );
    });
  }
}

const STDIN_CHUNK = 262_144;
const STDIN_PAUSE_MS = 200;
/** Many at a time, so that an exec in a busy sandbox is not charged for the end of an old one. */
const FORGOTTEN_AT_ONCE = 64;
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

function describeEnd({ status, exitCode, signal }: ExecRecord): string {
  if (status !== "exited") return `exec ${status}`;
  return signal === null ? `exec exited with ${exitCode}` : `exec ended by ${signal}`;
}
