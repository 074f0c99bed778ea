import type { ExecId } from "@holdfast/contract";
import {
  type ExecOrder,
  type JournalSlice,
  type KeeperExec,
  KeeperRefusal,
  type ProcessInfo,
  type SupervisedRun,
  type SupervisePolicy,
} from "@holdfast/engine";
import { type Parsed, parse } from "../schedule/command.ts";
import type { VirtualTime } from "../time/virtual-time.ts";
import { Journal } from "./journal.ts";

const SIGKILL = 9;
const STDIN_AT_ONCE = 5;
/** Duration of a run that resets the number of restarts to zero. Also the maximum wait before a restart. */
const MINUTE_MS = 60_000;
const TURN_MS = 1_000;

/** What a keeper needs from its surroundings. The simulated host provides it. */
interface Surroundings {
  readonly time: VirtualTime;
  readonly diskIsFull: boolean;
  /** Called when a command starts, on request or as the next run of a supervised process. */
  begun(order: ExecOrder, why: "asked" | "next"): void;
  /** Called when the keeper was asked to end an exec. */
  cancelled(order: ExecOrder, livedMs: number): void;
  /** Sends the end of an exec to every open link. */
  announce(exec: KeeperExec): void;
  announceStart(exec: KeeperExec): void;
  /** Returns whether a fault makes the keeper ignore the timeout of the exec that is being started. */
  forgetsTimeout(): boolean;
  /**
   * Called when the keeper's deadline has passed: a keeper without a link ends at that time. Returns true if the keeper
   * ends now, and false if it must wait because a link is up.
   */
  endsAtDeadline(): boolean;
  /** Records an action on disk. `steps` is the number of actions that the memory has recorded. */
  stepped(steps: number): void;
}

/** A future event of an exec. `at` is a time on the keeper's own clock, which stops while the keeper is stopped. */
type Planned =
  | { readonly at: number; readonly do: "print"; readonly n: number }
  | { readonly at: number; readonly do: "exit"; readonly exitCode: number }
  | { readonly at: number; readonly do: "time-out" };

export interface SimulatedExec {
  readonly order: ExecOrder;
  readonly journal: Journal;
  readonly command: Parsed;
  readonly pid: number;
  readonly startedAt: number;
  /** Time on the keeper's own clock at which the exec started. */
  readonly startedLived: number;
  /** Events that have not happened yet. */
  readonly plan: Set<Planned>;
  state: KeeperExec["state"];
  exitCode: number;
  signal: number;
  failure: string;
  endedAt: number;
  stdin: string;
  stdinOver: boolean;
  readonly readers: Set<() => void>;
}

/** A supervised process: a command that is restarted when it ends. */
interface SimulatedRow {
  readonly policy: SupervisePolicy;
  readonly order: ExecOrder;
  last: ExecId;
  state: SupervisedRun["state"];
  restarts: number;
  /** Time on the keeper's own clock at which the next run is due. */
  dueLived: number;
}

/** The complete state of a keeper: a checkpoint contains it, and a restored keeper starts with it. */
export interface KeeperMemory {
  readonly bootId: string;
  readonly livedMs: number;
  readonly steps: number;
  readonly pids: number;
  readonly execs: readonly SimulatedExec[];
  readonly rows: readonly SimulatedRow[];
  readonly endsAt: number | null;
}

/**
 * The keeper of one instance, as its protocol specifies: execs are identified by id, a journal is created before the
 * process of its command, and every exec ends once.
 */
export class SimulatedKeeper {
  readonly bootId: string;
  readonly execs = new Map<ExecId, SimulatedExec>();
  readonly rows = new Set<SimulatedRow>();
  readonly #dues = new Map<SimulatedRow, () => void>();
  readonly #journals: Map<ExecId, Journal>;
  readonly #host: Surroundings;
  #pids: number;
  /** Functions that cancel the timers of future events. There are timers only while the keeper runs. */
  readonly #timers = new Map<Planned, () => void>();
  /** Time on the keeper's own clock at `#runsSince`. That clock counts only the time in which the keeper ran. */
  #livedBefore: number;
  #runsSince: number;
  /** Number of actions recorded in memory. The files of the sandbox record the number too, separately. */
  #steps: number;
  #isStopped: boolean;
  #isDead = false;
  /** Time on the keeper's own clock at which the keeper ends if no link is up; null if it never ends by itself. */
  #endsAt: number | null;
  #cancelEnd: () => void = () => undefined;

  /** A keeper that is restored from memory starts in the stopped state. */
  constructor(
    born: { bootId: string; steps: number } | KeeperMemory,
    journals: Map<ExecId, Journal>,
    host: Surroundings,
  ) {
    const memory = "execs" in born ? born : null;
    this.bootId = born.bootId;
    this.#steps = born.steps;
    this.#pids = memory?.pids ?? 100;
    this.#livedBefore = memory?.livedMs ?? 0;
    this.#runsSince = host.time.elapsed;
    this.#isStopped = memory !== null;
    this.#endsAt = memory?.endsAt ?? null;
    this.#journals = journals;
    this.#host = host;
    for (const exec of memory?.execs ?? []) this.execs.set(exec.order.id, copyOf(exec));
    for (const row of memory?.rows ?? []) this.rows.add({ ...row });
  }

  /** Returns a snapshot that later changes do not affect. */
  remember(): KeeperMemory {
    const execs = [...this.execs.values()].map(copyOf);
    const rows = [...this.rows].map((row) => ({ ...row }));
    return {
      bootId: this.bootId,
      livedMs: this.livedMs,
      steps: this.#steps,
      pids: this.#pids,
      execs,
      rows,
      endsAt: this.#endsAt,
    };
  }

  setDeadline(remainingMs: number | null): void {
    this.#endsAt = remainingMs === null ? null : this.livedMs + remainingMs;
    this.#awaitEnd();
  }

  #awaitEnd(): void {
    this.#cancelEnd();
    if (this.#endsAt === null || this.#isStopped || this.#isDead) return;
    const ms = Math.max(0, this.#endsAt - this.livedMs);
    this.#cancelEnd = this.#host.time.after(ms, () => {
      // While the keeper may not end, it checks again regularly, as the real keeper does in each turn of its loop.
      if (!this.#host.endsAtDeadline())
        this.#cancelEnd = this.#host.time.after(TURN_MS, () => this.#awaitEnd());
    });
  }

  get livedMs(): number {
    return this.#livedBefore + (this.#isStopped ? 0 : this.#host.time.elapsed - this.#runsSince);
  }

  get steps(): number {
    return this.#steps;
  }

  get isStopped(): boolean {
    return this.#isStopped;
  }

  /** Records an action, in memory and in the sandbox's files. */
  step(): void {
    this.#steps += 1;
    this.#host.stepped(this.#steps);
  }

  start(order: ExecOrder): { existed: boolean; exec: KeeperExec } {
    const there = this.execs.get(order.id);
    if (there !== undefined) {
      if (there.order.digest !== order.digest) throw new KeeperRefusal("exec_conflict", "another command");
      return { existed: true, exec: known(there) };
    }
    if (this.#journals.has(order.id)) throw new KeeperRefusal("exec_conflict", "a journal has that name");
    const exec = this.#fork(order, "asked");
    this.#run(exec);
    return { existed: false, exec: known(exec) };
  }

  /** Starts a supervised command, which is restarted when it ends. */
  keep(order: ExecOrder, policy: SupervisePolicy): { existed: boolean; exec: KeeperExec } {
    const isTaken = [...this.rows].some((row) => isOpen(row) && countsAlike(row.last, order.id));
    if (!this.execs.has(order.id) && isTaken)
      throw new KeeperRefusal("exec_conflict", "another supervised command uses this id prefix");
    const row: SimulatedRow = { policy, order, last: order.id, state: "running", restarts: 0, dueLived: 0 };
    // The supervised process is added before its command starts, because the command may end immediately.
    if (!this.execs.has(order.id)) this.rows.add(row);
    try {
      return this.start(order);
    } catch (error) {
      this.rows.delete(row);
      throw error;
    }
  }

  kept(): SupervisedRun[] {
    const now = this.#host.time.now();
    return [...this.rows].map(({ last, state, restarts, dueLived }) => ({
      execId: last,
      state,
      restarts,
      nextAt: state === "waiting" ? now + Math.max(0, dueLived - this.livedMs) : null,
    }));
  }

  #rowOf(id: ExecId): SimulatedRow | undefined {
    return [...this.rows].find(({ last }) => last === id);
  }

  /** Decides what happens after a supervised run has ended. */
  #follow(row: SimulatedRow, exec: SimulatedExec): void {
    if (row.state !== "running") return;
    const { on, max, backoffMs } = row.policy;
    if (this.livedMs - exec.startedLived >= MINUTE_MS) row.restarts = 0;
    const isDone = exec.state === "exited" && exec.exitCode === 0 && on === "failure";
    if (isDone) row.state = "done";
    else if (row.restarts >= max) row.state = "given_up";
    else {
      row.state = "waiting";
      row.dueLived = this.livedMs + Math.min(MINUTE_MS, backoffMs * 2 ** row.restarts);
      this.#awaitRow(row);
    }
  }

  #awaitRow(row: SimulatedRow): void {
    const ms = Math.max(0, row.dueLived - this.livedMs);
    this.#dues.set(
      row,
      this.#host.time.after(ms, () => this.#beginNext(row)),
    );
  }

  #beginNext(row: SimulatedRow): void {
    if (this.#isStopped || this.#isDead || row.state !== "waiting") return;
    this.#dues.delete(row);
    const id = nextId(row.last);
    if (this.execs.has(id) || this.#journals.has(id)) {
      row.state = "given_up";
      return;
    }
    Object.assign(row, { last: id, state: "running", restarts: row.restarts + 1 });
    const exec = this.#fork({ ...row.order, id }, "next");
    this.#host.announceStart(known(exec));
    this.#run(exec);
  }

  #fork(order: ExecOrder, why: "asked" | "next"): SimulatedExec {
    const { time } = this.#host;
    const journal = new Journal(order.id);
    this.#journals.set(order.id, journal);
    this.#pids += 1;
    const exec: SimulatedExec = {
      order,
      journal,
      command: parse(order.argv),
      pid: this.#pids,
      startedAt: time.now(),
      startedLived: this.livedMs,
      plan: new Set(),
      state: "running",
      exitCode: -1,
      signal: 0,
      failure: "",
      endedAt: 0,
      stdin: "",
      stdinOver: false,
      readers: new Set(),
    };
    this.execs.set(order.id, exec);
    this.step();
    this.#host.begun(order, why);
    return exec;
  }

  #run(exec: SimulatedExec): void {
    const { command, order } = exec;
    const now = this.livedMs;
    if (order.timeoutMs > 0 && !this.#host.forgetsTimeout())
      this.#plan(exec, { at: now + order.timeoutMs, do: "time-out" });
    if (command.kind === "prove") {
      this.#print(exec, `${command.token}\n`);
      const exit: Planned = { at: now, do: "exit", exitCode: 0 };
      exec.plan.add(exit);
      queueMicrotask(() => this.#happens(exec, exit));
    } else if (command.kind === "missing") {
      exec.failure = "not_found";
      this.#end(exec, "exited", 127, 0);
    } else if (command.kind === "run") this.#perform(exec, command);
  }

  #perform(exec: SimulatedExec, { ms, exitCode, prints }: Extract<Parsed, { kind: "run" }>): void {
    const now = this.livedMs;
    for (let n = 1; n <= prints; n += 1)
      this.#plan(exec, { at: now + Math.ceil(((ms ?? 1_000) * n) / (prints + 1)), do: "print", n });
    if (ms !== null) this.#plan(exec, { at: now + ms, do: "exit", exitCode });
  }

  #plan(exec: SimulatedExec, planned: Planned): void {
    exec.plan.add(planned);
    this.#await(exec, planned);
  }

  #await(exec: SimulatedExec, planned: Planned): void {
    const ms = Math.max(0, planned.at - this.livedMs);
    this.#timers.set(
      planned,
      this.#host.time.after(ms, () => this.#happens(exec, planned)),
    );
  }

  #happens(exec: SimulatedExec, planned: Planned): void {
    // The keeper is stopped. The event happens when the keeper continues.
    if (this.#isStopped || this.#isDead) return;
    this.#timers.delete(planned);
    exec.plan.delete(planned);
    if (planned.do === "print") this.#print(exec, `${exec.order.id} says ${planned.n}\n`);
    else if (planned.do === "exit") this.#end(exec, "exited", planned.exitCode, 0);
    else this.#end(exec, "timed_out", -1, SIGKILL);
  }

  /** Stops the keeper, its clock, and its commands. */
  stop(): void {
    if (this.#isStopped) return;
    this.#livedBefore = this.livedMs;
    this.#isStopped = true;
    this.#still();
  }

  #still(): void {
    for (const cancel of this.#timers.values()) cancel();
    this.#timers.clear();
    for (const cancel of this.#dues.values()) cancel();
    this.#dues.clear();
    this.#cancelEnd();
  }

  resume(): void {
    if (!this.#isStopped) return;
    this.#isStopped = false;
    this.#runsSince = this.#host.time.elapsed;
    for (const exec of this.execs.values()) for (const planned of exec.plan) this.#await(exec, planned);
    for (const row of this.rows) if (row.state === "waiting") this.#awaitRow(row);
    this.#awaitEnd();
  }

  /** Forgets the running commands, as after an incomplete restore. */
  lose(): void {
    for (const [id, { state }] of this.execs) if (state === "running") this.execs.delete(id);
    for (const row of this.rows) if (!this.execs.has(row.last)) this.rows.delete(row);
  }

  #print(exec: SimulatedExec, text: string): void {
    if (exec.state !== "running") return;
    if (this.#host.diskIsFull) exec.failure = "journal_full";
    if (exec.failure === "journal_full") return;
    exec.journal.append(text, this.#host.time.now());
    this.step();
    this.#wake(exec);
  }

  #end(exec: SimulatedExec, state: KeeperExec["state"], exitCode: number, signal: number): void {
    if (exec.state !== "running" || this.#isDead) return;
    for (const planned of exec.plan) this.#timers.get(planned)?.();
    exec.plan.clear();
    Object.assign(exec, { state, exitCode, signal, endedAt: this.#host.time.now() });
    exec.journal.exit = known(exec);
    this.step();
    const row = this.#rowOf(exec.order.id);
    if (row !== undefined) this.#follow(row, exec);
    this.#wake(exec);
    this.#host.announce(known(exec));
  }

  #wake(exec: SimulatedExec): void {
    for (const wake of [...exec.readers]) wake();
  }

  #find(id: ExecId): SimulatedExec {
    const exec = this.execs.get(id);
    if (exec === undefined) throw new KeeperRefusal("no_such_exec", "no exec has that id");
    return exec;
  }

  /** Returns the output that is available, and whether a reader that waits should get an answer now. */
  read(id: ExecId, cursor: number): { slice: JournalSlice; isNews: boolean } {
    const exec = this.#find(id);
    const slice = exec.journal.slice(cursor, exec.state === "running");
    return { slice, isNews: slice.records.length > 0 || exec.state !== "running" };
  }

  /** Calls `then` when the exec prints something or ends. Returns a function that ends these calls. */
  onNews(id: ExecId, then: () => void): () => void {
    const { readers } = this.#find(id);
    readers.add(then);
    return () => readers.delete(then);
  }

  /**
   * Accepts stdin as the real keeper does: it skips bytes that it has already accepted, and limits the number of bytes
   * per call.
   */
  stdin(id: ExecId, { offset, data, end }: { offset: number; data: Uint8Array; end: boolean }): number {
    const exec = this.#find(id);
    if (exec.state !== "running") return offset + data.length;
    const have = exec.stdin.length;
    if (offset > have) throw new KeeperRefusal("bad_cursor", "a gap in stdin");
    const news = Buffer.from(data.subarray(Math.min(data.length, have - offset)));
    const taken = exec.stdinOver ? "" : news.toString("latin1").slice(0, STDIN_AT_ONCE);
    exec.stdin += taken;
    if (exec.command.kind === "cat" && taken !== "") this.#print(exec, taken);
    if (end && offset + data.length <= exec.stdin.length) this.#closeStdin(exec);
    return exec.stdin.length;
  }

  #closeStdin(exec: SimulatedExec): void {
    exec.stdinOver = true;
    if (exec.command.kind === "cat") this.#end(exec, "exited", 0, 0);
  }

  signal(id: ExecId, signal: number): void {
    const exec = this.#find(id);
    if (exec.state !== "running") throw new KeeperRefusal("system", "no such process", "ESRCH");
    this.#end(exec, "exited", -1, signal);
  }

  /** Kills the command with SIGKILL, as the kernel does when memory runs out. */
  kill(id: ExecId): void {
    const exec = this.execs.get(id);
    if (exec !== undefined) this.#end(exec, "exited", -1, SIGKILL);
  }

  cancel(id: ExecId): void {
    const exec = this.#find(id);
    const row = this.#rowOf(id);
    if (row !== undefined && isOpen(row)) row.state = "stopped";
    if (exec.state === "running") this.#host.cancelled(exec.order, this.livedMs - exec.startedLived);
    this.#end(exec, "cancelled", -1, SIGKILL);
  }

  list(): KeeperExec[] {
    return [...this.execs.values()].map(known);
  }

  forget(id: ExecId, keepJournal: boolean): void {
    const exec = this.execs.get(id);
    if (exec?.state === "running") throw new KeeperRefusal("exec_running", "it still runs");
    const row = this.#rowOf(id);
    if (row !== undefined && isOpen(row))
      throw new KeeperRefusal("exec_running", "it is about to be started again");
    if (row !== undefined) this.rows.delete(row);
    if (exec === undefined && (keepJournal || !this.#journals.has(id)))
      throw new KeeperRefusal("no_such_exec", "no exec has that id");
    this.execs.delete(id);
    if (!keepJournal) this.#journals.delete(id);
  }

  processes(): ProcessInfo[] {
    return [];
  }

  /** Ends the keeper. Its memory and commands are lost; the journals stay. */
  die(): void {
    this.#isDead = true;
    this.#still();
  }
}

const isOpen = ({ state }: SimulatedRow): boolean => state === "running" || state === "waiting";

const stemOf = (id: ExecId): string => id.slice(0, id.lastIndexOf("-"));
const countsAlike = (one: ExecId, other: ExecId): boolean => stemOf(one) === stemOf(other);
const nextId = (id: ExecId): ExecId => {
  const stem = stemOf(id);
  return `${stem}-${Number(id.slice(stem.length + 1)) + 1}` as ExecId;
};

/**
 * Copies an exec. All copies share the journal, because it is a file. Readers are not copied, because their links are
 * closed.
 */
const copyOf = (exec: SimulatedExec): SimulatedExec => ({
  ...exec,
  plan: new Set(exec.plan),
  readers: new Set(),
});

const known = (exec: SimulatedExec): KeeperExec => ({
  id: exec.order.id,
  state: exec.state,
  pid: exec.pid,
  exitCode: exec.exitCode,
  signal: exec.state === "running" ? 0 : exec.signal,
  failure: exec.failure,
  startedAt: exec.startedAt,
  endedAt: exec.endedAt,
  journalFloor: 0,
  journalEnd: exec.journal.end,
  digest: exec.order.digest,
});
