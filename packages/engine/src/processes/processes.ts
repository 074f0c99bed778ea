import {
  causeOf,
  type Exec,
  type ExecId,
  HoldfastError,
  isProcessId,
  isProcessOver,
  type Process,
  type ProcessList,
  type SandboxId,
  type StartProcess,
} from "@holdfast/contract";
import type { ProcessApi } from "./api.ts";
import type { Cell } from "./cell.ts";
import { aborted, soonest, within } from "./clock.ts";
import { newExec } from "./exec.ts";
import { checkSteps, type Execs, type Finder } from "./execs.ts";
import type { Gate } from "./gate.ts";
import type { Also, FoundRun, Ledger, Runs } from "./ledger.ts";
import { type OpenExec, stageOf } from "./open-exec.ts";
import type { Change, KeeperExec, KeptRun, Link, NewEvent } from "./ports.ts";
import { judgeProcess, type ProcessFacts, readyOf, runId, verdict, wasSaid } from "./process.ts";
import { type ProcessEntry, processEntry } from "./process-entry.ts";
import { endingOf, eventOf, restarted } from "./process-events.ts";
import { entryOf, isNews, named, numberIn, rowOf, rowWord, runIdOf } from "./process-runs.ts";
import { processDigest, processSpecOf } from "./process-spec.ts";
import { Readiness } from "./readiness.ts";
import type { ExecRecord, ProcessRecord, ProcessSpec, Seen } from "./records.ts";
import type { World } from "./world.ts";

export interface ProcessParts {
  ledger: Ledger;
  gate: Gate;
  execs: Execs;
  finder: Finder;
}

/** How long an answer waits, and for whom. */
interface Waited {
  waitMs?: number | undefined;
  signal: AbortSignal;
}

/** Beyond the time that readiness has: for the start itself, and for the look after which it is late. */
const READY_SLACK_MS = 5_000;
/** How often one that is over may be wanted again in the very moment in which its name is. */
const START_TRIES = 3;
/** As many runs as a keeper begins with nobody there to forget any. */
const LEFT_RUNS_MAX = 2_048;

/**
 * Named processes. A run is an exec like any other; which run follows which is the keeper's to decide while its memory lasts,
 * so that a process is restarted with no server there, and this asks the keeper what it did. What it hears from the keeper
 * unasked only makes it ask sooner: a list is the truth. Runs that the keeper began are put on record when they are found,
 * so none is lost and none is taken for a stranger; where its memory is lost, the next run is begun from here.
 */
export class Processes implements ProcessApi, Runs {
  readonly #world: World;
  readonly #parts: ProcessParts;
  readonly #readiness: Readiness;
  /** Who looks at the processes of a sandbox, and whether to look once more. */
  readonly #looks = new Map<Cell, { again: boolean }>();
  /** Starts under one name, and those that make room in one sandbox, one after the other. */
  readonly #lines = new Map<string, Promise<unknown>>();

  constructor(world: World, parts: ProcessParts) {
    this.#world = world;
    this.#parts = parts;
    this.#readiness = new Readiness(world, (entry, seen) => this.#noteSeen(entry, seen));
  }

  /** Takes up what an earlier server left. */
  async load(): Promise<void> {
    const { store } = this.#world;
    for (const record of await store.processes()) {
      const cell = this.#parts.finder.cell(record.sandboxId);
      if (cell === undefined) continue;
      const entry = this.adopt(cell, record);
      if (record.end === null) entry.last = await store.exec(runIdOf(record)).catch(() => null);
    }
  }

  /** One that is on record. */
  adopt(cell: Cell, record: ProcessRecord): ProcessEntry {
    const entry = processEntry(cell, record);
    cell.processes.set(record.id, entry);
    return entry;
  }

  // ── What callers ask for ───────────────────────────────────────────────────────────────────────────────────────

  async start(ref: string, input: StartProcess, options: Waited) {
    const cell = await this.#parts.finder.find(ref);
    const spec = processSpecOf(input, cell);
    const digest = processDigest(spec);
    const asked = { name: input.name, spec, digest };
    const { entry, followed } = await this.#inLine(`${cell.id}/${input.name}`, async () => {
      for (let tries = 1; ; tries += 1) {
        const there = named(cell, input.name);
        if (there?.record.end === null) return { entry: followable(there, digest), followed: true };
        const made = await this.#begin(cell, asked, options.signal);
        if (made !== null) return { entry: made, followed: false };
        if (tries === START_TRIES) throw conflict(cell, input.name);
      }
    });
    return { process: await this.#settled(entry, options), followed };
  }

  async list(ref: string): Promise<ProcessList> {
    const cell = await this.#parts.finder.find(ref);
    const items = await Promise.all([...cell.processes.values()].map((entry) => this.#view(entry)));
    return { items, nextCursor: null };
  }

  async get(ref: string, which: string): Promise<Process> {
    return this.#view(await this.#find(ref, which));
  }

  async wait(ref: string, which: string, options: Waited): Promise<Process> {
    return this.#settled(await this.#find(ref, which), options);
  }

  async runs(ref: string, which: string, page: { cursor?: string | undefined; limit: number }) {
    const { record } = await this.#find(ref, which);
    return this.#parts.execs.listOf(record.sandboxId, record.id, page);
  }

  async stop(ref: string, which: string, signal: AbortSignal): Promise<Process> {
    const { clock, numbers } = this.#world;
    const entry = await this.#find(ref, which);
    const { cell } = entry;
    if (entry.record.end === null) {
      // What has failed runs no more, and can still be told not to be started again.
      if (cell.record.phase.name !== "failed") await this.#parts.gate.pass(cell, signal);
      await this.#order(entry, "stop");
      const limit = { ms: numbers.keeperCallMs, what: "the end of the process", signal };
      const isOver = () => entry.record.end !== null || isEnding(cell);
      await within(clock, limit, (inner) => cell.until(isOver, inner)).catch(() => signal.throwIfAborted());
    }
    return this.#view(entry);
  }

  async restart(ref: string, which: string, options: Waited): Promise<Process> {
    const entry = await this.#find(ref, which);
    await this.#parts.gate.pass(entry.cell, options.signal);
    const after = await this.#order(entry, "restart");
    const { clock, numbers } = this.#world;
    const limit = { ms: numbers.execStartDeadlineMs, what: "the next run", signal: options.signal };
    const isBegun = () => entry.record.run > after || entry.record.end !== null || isEnding(entry.cell);
    await within(clock, limit, (inner) => entry.cell.until(isBegun, inner)).catch(() =>
      options.signal.throwIfAborted(),
    );
    return this.#settled(entry, options);
  }

  /** Somebody wants something of it, which is done whatever becomes of the caller. Says which run was the last then. */
  async #order(entry: ProcessEntry, what: "stop" | "restart"): Promise<number> {
    const after = await this.#inTurn(entry, async () => {
      const { cell, record } = entry;
      if (cell.processes.get(record.id) !== entry) throw notFound(cell, record.name);
      if (what === "stop" && (record.end !== null || record.order?.do === "stop")) return record.run;
      const order = what === "stop" ? { do: what } : { do: what, after: record.run };
      await this.#store(entry, { order, end: null }, []).catch((cause: unknown) => {
        const message = "The order could not be recorded, so it was not begun.";
        throw new HoldfastError("internal", { sandboxId: cell.id, message, cause });
      });
      return record.run;
    });
    this.look(entry.cell);
    return after;
  }

  async #find(ref: string, which: string): Promise<ProcessEntry> {
    const cell = await this.#parts.finder.find(ref);
    const entry = isProcessId(which) ? cell.processes.get(which) : named(cell, which);
    if (entry !== undefined) return entry;
    throw notFound(cell, which);
  }

  /** As it is when there is nothing more to wait for, or after a while. */
  async #settled(entry: ProcessEntry, { waitMs, signal }: Waited): Promise<Process> {
    const { clock, numbers } = this.#world;
    const { readyWhen } = entry.record.spec;
    const ms = Math.min(waitMs ?? (readyWhen?.withinMs ?? 0) + READY_SLACK_MS, numbers.execWaitMaxMs);
    const isSettled = () => {
      const { status } = this.#judge(entry);
      const isStill = isEnding(entry.cell) || entry.cell.record.phase.name === "failed";
      return status === "ready" || status === "unready" || isProcessOver(status) || isStill;
    };
    const limit = { ms, what: "becoming ready", signal };
    if (ms > 0)
      await within(clock, limit, (inner) => entry.cell.until(isSettled, inner)).catch(() =>
        signal.throwIfAborted(),
      );
    return this.#view(entry);
  }

  /**
   * The process and its first run are stored in one commit, before the keeper hears of either. Null where one that was to make
   * room is needed again.
   */
  async #begin(
    cell: Cell,
    asked: { name: string; spec: ProcessSpec; digest: string },
    signal: AbortSignal,
  ): Promise<ProcessEntry | null> {
    const { clock, numbers } = this.#world;
    const link = await this.#parts.gate.pass(cell, signal);
    signal.throwIfAborted();
    // One at a time: all who waited for the same wake would find the same room.
    const made = await this.#inLine(cell.id, () => this.#make(cell, asked, link));
    if (made === null) return null;
    const { entry, open } = made;
    await soonest(clock, numbers.execStartDeadlineMs, open.begun.signal);
    if (open.record.status === "refused" && open.record.cause?.code === "unknown_type")
      throw new HoldfastError("process_unsupported", { sandboxId: cell.id, execId: open.record.id });
    this.look(cell);
    return entry;
  }

  async #make(
    cell: Cell,
    asked: { name: string; spec: ProcessSpec; digest: string },
    link: Link,
  ): Promise<{ entry: ProcessEntry; open: OpenExec } | null> {
    const { clock, ids } = this.#world;
    checkSteps(cell);
    const displaced = this.#room(cell, asked.name);
    const record: ProcessRecord = {
      id: ids.process(),
      sandboxId: cell.id,
      ...asked,
      run: 1,
      generation: cell.record.generation,
      restarts: 0,
      order: null,
      seen: null,
      end: null,
      createdAt: clock.now(),
      revision: 0,
    };
    const message = `Process ${record.name} was started.`;
    const also: Also = {
      changes: [
        ...displaced.map(({ record: { id } }) => ({ kind: "process.remove", id }) as const),
        { kind: "process.insert", record },
      ],
      events: [eventOf(record, "process.started", clock.now(), message)],
    };
    const entry = processEntry(cell, record);
    return this.#inTurns([...displaced, entry], async () => {
      // Somebody may have wanted one of them again meanwhile.
      if (displaced.some((old) => old.record.end === null)) return null;
      cell.processes.set(record.id, entry);
      try {
        const open = await this.#startRun(cell, record, link, also);
        for (const { record: old } of displaced) cell.processes.delete(old.id);
        return { entry, open };
      } catch (error) {
        cell.processes.delete(record.id);
        throw error;
      }
    });
  }

  /** Stored with what belongs to it, and on its way. Whoever has the turn of a process waits for no keeper. */
  #startRun(
    cell: Cell,
    record: ProcessRecord,
    link: Link,
    also: Also,
    isUncounted = false,
  ): Promise<OpenExec> {
    const exec = newExec(cell, execOf(record, this.#world.clock.now()));
    const options = { idempotency: undefined, link, awaited: false, isUnwaited: true };
    return this.#parts.ledger.start(cell, exec, { ...options, also, isUncounted });
  }

  /** Those that make room for one of this name: the one that had it, and beyond the limit the one that ended first. */
  #room(cell: Cell, name: string): ProcessEntry[] {
    const { processesPerSandbox } = this.#world.numbers;
    const entries = [...cell.processes.values()];
    const displaced = entries.filter(({ record }) => record.name === name);
    if (entries.length - displaced.length < processesPerSandbox) return displaced;
    const endedAt = ({ record }: ProcessEntry) => record.end?.at ?? Number.POSITIVE_INFINITY;
    const [oldest] = entries
      .filter(({ record }) => record.end !== null)
      .sort((a, b) => endedAt(a) - endedAt(b));
    if (oldest === undefined) throw new HoldfastError("too_many_processes", { sandboxId: cell.id });
    return [...displaced, oldest];
  }

  // ── What is asked by the ledger, and told to it ────────────────────────────────────────────────────────────────

  policyOf({ cell, record: { id } }: OpenExec) {
    return entryOf(cell, id)?.record.spec.restart ?? null;
  }

  isOf(cell: Cell, id: ExecId): boolean {
    return numberIn(id) >= (entryOf(cell, id)?.record.run ?? Number.POSITIVE_INFINITY);
  }

  isUnrecorded(cell: Cell, id: ExecId): boolean {
    return isNews(cell, id);
  }

  /** The last run of one that is not over: what follows it is told by its end, and by the keeper for as long as it has it. */
  isHeld(sandboxId: SandboxId, id: ExecId): boolean {
    const cell = this.#parts.finder.cell(sandboxId);
    const record = cell && entryOf(cell, id)?.record;
    return record !== undefined && record.end === null && runIdOf(record) === id;
  }

  async found(cell: Cell, known: readonly KeeperExec[], link: Link, signal: AbortSignal): Promise<void> {
    if (!known.some(({ id }) => isNews(cell, id))) return;
    const rows = await link.listKept(signal).catch(() => []);
    for (const [entry, all] of Map.groupBy(known, ({ id }) => entryOf(cell, id)))
      if (entry !== undefined)
        await this.#inTurn(entry, () => this.#take(entry, all, rowOf(rows, entry))).catch(
          (error: unknown) => {
            const cause = causeOf(error);
            this.#world.log.error(
              { sandbox: cell.id, process: entry.record.id, cause },
              "runs could not be recorded",
            );
          },
        );
  }

  over({ cell, record }: OpenExec): void {
    const entry = entryOf(cell, record.id);
    if (entry === undefined) return;
    if (runIdOf(entry.record) === record.id) entry.last = record;
    this.look(cell);
  }

  /** Puts runs on record that the keeper began by itself. They run, or ran, whatever was thought of the process. */
  async #take(entry: ProcessEntry, all: readonly KeeperExec[], row: KeptRun | null): Promise<void> {
    const { cell, record } = entry;
    const known = all
      .filter(({ id }) => isNews(cell, id))
      .sort((one, other) => numberIn(one.id) - numberIn(other.id));
    if (known.length === 0) return;
    const runs = known.map((exec) => ({
      known: exec,
      record: {
        ...newExec(cell, { ...execOf(record, exec.startedAt), id: exec.id }),
        startedAt: exec.startedAt,
      },
    }));
    await this.#record(entry, runs, { all, generation: cell.record.generation, restarts: row?.restarts });
  }

  /**
   * Puts runs on record that the keeper began by itself and nobody heard of before its memory was lost: their journals are
   * there, and tell what became of them. The next run is begun behind them, and only if the last of them asks for it. Says
   * whether there are any.
   */
  async #takeLeft(entry: ProcessEntry): Promise<boolean> {
    const { clock, journals, numbers, stopping } = this.#world;
    const { cell, record } = entry;
    const { generation } = cell.record;
    if (record.spec.restart === null || entry.searchedIn === generation || this.#facts(entry).isRemembered)
      return false;
    const limit = { ms: numbers.keeperCallMs, what: "looking for journals of runs", signal: stopping };
    const left: KeeperExec[] = [];
    const runs = await within(clock, limit, async (signal) => {
      const found: FoundRun[] = [];
      while (found.length < LEFT_RUNS_MAX) {
        const id = runId(record.id, record.run + found.length + 1);
        const journal = await journals.end(cell.id, id, signal);
        if (journal === null) break;
        if (journal.exec !== null) left.push(journal.exec);
        const order = { ...execOf(record, journal.exec?.startedAt ?? clock.now()), id };
        found.push({ known: null, record: { ...newExec(cell, order), generation: record.generation } });
      }
      return found;
    });
    if (runs.length > 0) await this.#record(entry, runs, { all: left, generation: record.generation });
    entry.searchedIn = generation;
    return runs.length > 0;
  }

  /** Runs behind the last on record, in their order; `all` is what is known of them and of those before. */
  async #record(
    entry: ProcessEntry,
    runs: readonly FoundRun[],
    about: { all: readonly KeeperExec[]; generation: number; restarts?: number | undefined },
  ): Promise<void> {
    const { cell, record } = entry;
    const { all, generation, restarts = record.restarts + runs.length } = about;
    const change = {
      run: Math.max(...runs.map((run) => numberIn(run.record.id))),
      generation,
      restarts,
      // Whoever wanted the next run has it.
      order: record.order?.do === "stop" ? record.order : null,
      end: null,
    };
    const before = await this.#lastExec(entry);
    await this.#apply(entry, change, (next) => {
      const events = runs.map(({ record: { id, createdAt } }, place) => {
        const run = {
          ...next,
          run: numberIn(id),
          restarts: Math.max(0, restarts - (runs.length - 1 - place)),
        };
        const previous = all.find((exec) => exec.id === runId(record.id, run.run - 1));
        return restarted(run, endingOf(previous) ?? (place === 0 ? before : null), createdAt);
      });
      return this.#parts.ledger.take(cell, runs, { changes: [updateOf(next)], events });
    });
  }

  // ── What is decided ────────────────────────────────────────────────────────────────────────────────────────────

  /** Something may have changed: asks the keeper and does what follows. One at a time, and once more where it was asked for meanwhile. */
  look(cell: Cell): void {
    if (!cell.hasLiveProcess || this.#world.stopping.aborted) return;
    const looking = this.#looks.get(cell);
    if (looking !== undefined) {
      looking.again = true;
      return;
    }
    const look = { again: true };
    this.#looks.set(cell, look);
    void (async () => {
      while (look.again && !this.#world.stopping.aborted) {
        look.again = false;
        await this.#lookOnce(cell);
      }
      this.#looks.delete(cell);
    })();
  }

  /** Never rejects. */
  async #lookOnce(cell: Cell): Promise<void> {
    const { clock, numbers, stopping, log } = this.#world;
    const link = cell.links?.current ?? null;
    try {
      if (link !== null) {
        const limit = { ms: numbers.keeperCallMs, what: "asking for processes", signal: stopping };
        await within(clock, limit, async (signal) => {
          await this.#parts.ledger.compare(cell, link, signal);
          await this.#hear(cell, link, signal);
        });
        cell.changed();
      }
    } catch (error) {
      // The next link, or the next round, asks again.
      if (!stopping.aborted)
        log.debug({ sandbox: cell.id, cause: causeOf(error) }, "processes could not be asked for");
    }
    for (const entry of [...cell.processes.values()])
      await this.#inTurn(entry, () => this.#tend(entry)).catch((error: unknown) => {
        if (stopping.aborted) return;
        const cause = causeOf(error);
        log.warn({ sandbox: cell.id, process: entry.record.id, cause }, "a process could not be tended");
      });
  }

  /** That there is no row says something only where its keeper has had the run: a start may still be on its way there. */
  async #hear(cell: Cell, link: Link, signal: AbortSignal): Promise<void> {
    const isThere = (entry: ProcessEntry) =>
      this.#parts.ledger.open(runIdOf(entry.record))?.acknowledged ?? true;
    const asked = [...cell.processes.values()]
      .filter(isThere)
      .map((entry) => ({ entry, run: entry.record.run }));
    const rows = await link.listKept(signal);
    for (const { entry, run } of asked) entry.heard = { row: rowOf(rows, entry), link, run };
  }

  async #tend(entry: ProcessEntry): Promise<void> {
    const { cell, record } = entry;
    if (record.end !== null || isEnding(cell) || cell.processes.get(record.id) !== entry) return;
    const open = this.#parts.ledger.open(runIdOf(record));
    if (open === undefined) {
      entry.last ??= await this.#lastExec(entry);
      // Their ends are told of, and then it is looked at again.
      if (await this.#takeLeft(entry)) return;
    }
    const next = verdict(this.#facts(entry));
    switch (next.do) {
      case "nothing":
        if (open !== undefined) this.#readiness.watch(entry, open);
        return;
      case "cancel":
        return this.#cancel(entry, open);
      case "begin":
        return this.#beginNext(entry);
      case "end": {
        const { state, cause } = next;
        const at = this.#world.clock.now();
        const message = `Process ${record.name} is over: ${state}. ${cause?.message ?? ""}`.trim();
        const restarts = rowWord(entry)?.restarts ?? record.restarts;
        const event = eventOf(record, `process.${state}`, at, message, { restarts, ...(cause && { cause }) });
        return this.#store(entry, { end: { state, cause, at }, order: null, restarts }, [event]);
      }
    }
  }

  async #cancel(entry: ProcessEntry, open: OpenExec | undefined): Promise<void> {
    const { clock, numbers, stopping } = this.#world;
    const { cell, record } = entry;
    if (open !== undefined && this.#parts.ledger.cancelQueued(open)) return;
    const link = servingLink(cell);
    if (link === null) return;
    // Not before it has arrived; then it is looked at again.
    if (open !== undefined && !open.acknowledged) {
      void aborted(open.begun.signal).then(() => this.look(cell));
      return;
    }
    const limit = { ms: numbers.keeperCallMs, what: "cancelling", signal: stopping };
    const leave = cell.enter();
    try {
      await within(clock, limit, (signal) => link.cancelExec(runIdOf(record), signal));
    } finally {
      leave();
    }
    // One that waited has no end that would tell of it.
    if (open === undefined) this.look(cell);
  }

  /** The next run, of one that nobody else begins: its sandbox was started anew, or somebody wants it now. */
  async #beginNext(entry: ProcessEntry): Promise<void> {
    const { clock } = this.#world;
    const { cell, record } = entry;
    const link = servingLink(cell);
    if (link === null) return;
    const before = await this.#lastExec(entry);
    const run = record.run + 1;
    const change = { run, generation: cell.record.generation, restarts: 0, order: null };
    await this.#apply(entry, change, async (next) => {
      const also = { changes: [updateOf(next)], events: [restarted(next, before, clock.now())] };
      await this.#startRun(cell, next, link, also, true);
    });
    this.look(cell);
  }

  async #noteSeen(entry: ProcessEntry, seen: Seen): Promise<void> {
    await this.#inTurn(entry, async () => {
      const { record } = entry;
      const isPast = record.end !== null || record.run !== seen.run;
      if (isPast && seen.state === "ready") return;
      const wasReady = record.seen?.run === seen.run && record.seen.state === "ready";
      const isNews = seen.state === "unready" || !wasReady;
      const at = seen.state === "ready" && wasReady && record.seen ? record.seen.at : seen.at;
      const message =
        seen.state === "ready"
          ? `Process ${record.name} is ready.`
          : `Process ${record.name} is not ready: ${seen.cause.message}`;
      const data = seen.state === "ready" ? { how: seen.how } : { cause: seen.cause };
      const event = eventOf({ ...record, run: seen.run }, `process.${seen.state}`, seen.at, message, data);
      const said = seen.state === "unready" && wasSaid(record.seen, seen.run) && { said: true };
      await this.#store(entry, isPast ? {} : { seen: { ...seen, at, ...said } }, isNews ? [event] : []);
    });
  }

  // ── Records ────────────────────────────────────────────────────────────────────────────────────────────────────

  #store(entry: ProcessEntry, change: Partial<ProcessRecord>, events: readonly NewEvent[]): Promise<void> {
    const { store } = this.#world;
    return this.#apply(entry, change, (next) => store.commit({ changes: [updateOf(next)], events }));
  }

  /** Memory follows what was written, and only that. */
  async #apply(
    entry: ProcessEntry,
    change: Partial<ProcessRecord>,
    write: (next: ProcessRecord) => Promise<void>,
  ): Promise<void> {
    const next = { ...entry.record, ...change, revision: entry.record.revision + 1 };
    const isNextRun = next.run !== entry.record.run;
    await write(next);
    entry.record = next;
    if (isNextRun) entry.last = null;
    entry.cell.changed();
  }

  #inTurn<Result>(entry: ProcessEntry, act: () => Promise<Result>): Promise<Result> {
    const turn = entry.tail.then(act);
    entry.tail = turn.catch(() => undefined);
    return turn;
  }

  /** The turns of several at once, taken in an order that all keep to. */
  #inTurns<Result>(entries: readonly ProcessEntry[], act: () => Promise<Result>): Promise<Result> {
    const sorted = [...entries].sort((one, other) => (one.record.id < other.record.id ? -1 : 1));
    return sorted.reduceRight<() => Promise<Result>>(
      (inner, entry) => () => this.#inTurn(entry, inner),
      act,
    )();
  }

  async #inLine<Result>(key: string, act: () => Promise<Result>): Promise<Result> {
    const turn = (this.#lines.get(key) ?? Promise.resolve()).then(act);
    const tail = turn.catch(() => undefined);
    this.#lines.set(key, tail);
    void tail.then(() => this.#lines.get(key) === tail && this.#lines.delete(key));
    return turn;
  }

  // ── Views ──────────────────────────────────────────────────────────────────────────────────────────────────────

  #facts(entry: ProcessEntry): ProcessFacts {
    const { cell, record, last, heard } = entry;
    const open = this.#parts.ledger.open(runIdOf(record));
    const isOfNow = heard !== null && heard.link === cell.links?.current && heard.run === record.run;
    const kept = isOfNow ? heard.row : "unknown";
    return {
      record,
      last: open === undefined ? { is: "over", exec: last } : { is: "open", stage: stageOf(open) },
      kept,
      isRemembered: record.generation >= cell.record.memorySince && hasMemory(cell),
    };
  }

  #judge(entry: ProcessEntry) {
    const { generation, phase } = entry.cell.record;
    return judgeProcess(this.#facts(entry), generation, phase.name === "failed");
  }

  async #lastExec(entry: ProcessEntry): Promise<ExecRecord | null> {
    const id = runIdOf(entry.record);
    const open = this.#parts.ledger.open(id);
    return open?.record ?? entry.last ?? (await this.#world.store.exec(id).catch(() => null));
  }

  async #view(entry: ProcessEntry): Promise<Process> {
    // What is over may have been forgotten since.
    const found =
      entry.record.end === null
        ? await this.#lastExec(entry)
        : await this.#world.store.exec(runIdOf(entry.record)).catch(() => null);
    const { cell, record } = entry;
    const { status, cause } = this.#judge(entry);
    const exec: Exec | null = found?.id === runIdOf(record) ? this.#parts.ledger.view(found) : null;
    const row = rowWord(entry);
    const { command, restart, readyWhen, connectBy } = record.spec;
    return {
      id: record.id,
      name: record.name,
      sandboxId: record.sandboxId,
      status,
      cause,
      ready: readyOf(record, status, found?.startedAt ?? null),
      argv: [...command.argv],
      restarts: row?.restarts ?? record.restarts,
      runs: record.run,
      nextRunAt: status === "waiting" && row?.nextAt ? new Date(row.nextAt).toISOString() : null,
      execId: runIdOf(record),
      exec,
      restart,
      readyWhen,
      connectBy,
      keepAwake: command.keepAwake,
      suspended: cell.isAsleep && record.end === null,
      createdAt: new Date(record.createdAt).toISOString(),
      endedAt: record.end === null ? null : new Date(record.end.at).toISOString(),
    };
  }
}

function followable(there: ProcessEntry, digest: string): ProcessEntry {
  if (there.record.digest === digest) return there;
  throw conflict(there.cell, there.record.name);
}

function conflict({ id: sandboxId }: Cell, name: string): HoldfastError {
  const message = `The sandbox has a process ${name} that was started differently, and is not over.`;
  return new HoldfastError("process_conflict", { sandboxId, message });
}

function notFound({ id: sandboxId }: Cell, which: string): HoldfastError {
  const message = `The sandbox has no process ${JSON.stringify(which.slice(0, 80))}.`;
  return new HoldfastError("process_not_found", { sandboxId, message });
}

const execOf = (record: ProcessRecord, createdAt: number) => ({
  id: runIdOf(record),
  spec: record.spec.command,
  digest: record.digest,
  createdAt,
});

const updateOf = (record: ProcessRecord): Change => ({
  kind: "process.update",
  record,
  expectedRevision: record.revision - 1,
});

/** Not where that was lost, and its record says so. */
const hasMemory = ({ record: { phase } }: Cell): boolean =>
  phase.name !== "failed" && !(phase.name === "queued" && phase.restart !== undefined);

/** Nothing is done about the processes of a sandbox that is being deleted: they end with it. */
const isEnding = ({ record: { phase } }: Cell): boolean => phase.name === "deleting" || phase.name === "gone";

/** The link of a sandbox that serves: nothing is begun in one that is not proven. */
const servingLink = ({ record, links }: Cell): Link | null =>
  record.phase.name === "running" ? (links?.current ?? null) : null;
