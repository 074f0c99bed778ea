import { causeOf } from "@holdfast/contract";
import type { ExecLedger } from "../execs/exec-ledger.ts";
import { within } from "../lib/deadline.ts";
import type { LiveSandbox } from "../live/live-sandbox.ts";
import type { OpenExec } from "../live/open-exec.ts";
import type { ProcessEntry } from "../live/process-entry.ts";
import { recordedRow, rowOf, runIdOf } from "../live/run-ids.ts";
import { verdict, wasWritten } from "../model/process-machine.ts";
import type { EngineContext } from "../ports/context.ts";
import type { Link } from "../ports/index.ts";
import type { Seen } from "../ports/records.ts";
import type { FoundRuns } from "./found-runs.ts";
import { eventOf, restarted } from "./process-events.ts";
import { isEnding, type ProcessRecords, updateOf } from "./process-records.ts";
import type { ProcessStart } from "./process-start.ts";
import { Readiness } from "./readiness.ts";

interface ReconcileParts {
  ledger: ExecLedger;
  records: ProcessRecords;
  runs: FoundRuns;
  starts: ProcessStart;
}

/**
 * Brings the processes of a sandbox from their recorded state to the requested one. Asks the keeper for their state,
 * lets the process machine decide what to do, and does it.
 */
export class ProcessReconcile {
  readonly #context: EngineContext;
  readonly #parts: ReconcileParts;
  readonly #readiness: Readiness;
  /** The sandboxes that are being reconciled. `again`: whether the sandbox must be reconciled once more. */
  readonly #rounds = new Map<LiveSandbox, { again: boolean }>();

  constructor(context: EngineContext, parts: ReconcileParts) {
    this.#context = context;
    this.#parts = parts;
    this.#readiness = new Readiness(context, (entry, seen) => this.#storeSeen(entry, seen));
  }

  /** Reconciles a sandbox. If it is already being reconciled, it is reconciled once more afterwards. */
  reconcile(live: LiveSandbox): void {
    if (!live.hasLiveProcess || this.#context.stopping.aborted) return;
    const current = this.#rounds.get(live);
    if (current !== undefined) {
      current.again = true;
      return;
    }
    const round = { again: true };
    this.#rounds.set(live, round);
    void (async () => {
      while (round.again && !this.#context.stopping.aborted) {
        round.again = false;
        await this.#reconcileOnce(live);
      }
      this.#rounds.delete(live);
    })();
  }

  /** Reconciles a sandbox once. Never rejects. */
  async #reconcileOnce(live: LiveSandbox): Promise<void> {
    const { clock, numbers, stopping, log } = this.#context;
    const link = live.link;
    try {
      if (link !== null) {
        const limit = { ms: numbers.keeperCallMs, what: "asking for processes", signal: stopping };
        await within(clock, limit, async (signal) => {
          await this.#parts.ledger.compare(live, link, signal);
          await this.#readRows(live, link, signal);
        });
        live.changed();
      }
    } catch (error) {
      // A failure needs no retry: the next link, or the next maintenance round, reconciles again.
      if (!stopping.aborted)
        log.debug({ sandbox: live.id, cause: causeOf(error) }, "failed to list the processes");
    }
    for (const entry of [...live.processes.values()])
      await entry.turns
        .run(() => this.#act(entry))
        .catch((error: unknown) => {
          if (stopping.aborted) return;
          const cause = causeOf(error);
          log.warn({ sandbox: live.id, process: entry.record.id, cause }, "failed to reconcile a process");
        });
  }

  /**
   * Asks the keeper for its supervised commands. A run that is missing in the keeper's answer has ended only if the
   * keeper had acknowledged it before. Without an acknowledgement, the start request of the run may still be in
   * transit.
   */
  async #readRows(live: LiveSandbox, link: Link, signal: AbortSignal): Promise<void> {
    const isAcknowledged = (entry: ProcessEntry) =>
      this.#parts.ledger.open(runIdOf(entry.record))?.isAcknowledged ?? true;
    const asked = [...live.processes.values()]
      .filter(isAcknowledged)
      .map((entry) => ({ entry, run: entry.record.run }));
    const rows = await link.listSupervised(signal);
    for (const { entry, run } of asked) entry.setReport({ row: rowOf(rows, entry), link, run });
  }

  async #act(entry: ProcessEntry): Promise<void> {
    const { ledger, records, runs } = this.#parts;
    const { live, record } = entry;
    if (record.end !== null || isEnding(live) || live.processes.get(record.id) !== entry) return;
    const open = ledger.open(runIdOf(record));
    if (open === undefined) {
      if (entry.lastExec === null) entry.setLastExec(await records.lastExec(entry));
      // If runs were recorded, nothing is decided yet: when these runs have ended in the ledger, the sandbox is
      // reconciled again.
      if (await runs.recordLeft(entry)) return;
    }
    const next = verdict(records.facts(entry));
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
        const at = this.#context.clock.now();
        const message = `Process ${record.name} ended: ${state}. ${cause?.message ?? ""}`.trim();
        const restarts = recordedRow(entry)?.restarts ?? record.restarts;
        const event = eventOf(record, `process.${state}`, at, message, { restarts, ...(cause && { cause }) });
        return records.store(entry, { end: { state, cause, at }, order: null, restarts }, [event]);
      }
    }
  }

  async #cancel(entry: ProcessEntry, open: OpenExec | undefined): Promise<void> {
    const { clock, numbers, stopping } = this.#context;
    const { live, record } = entry;
    if (open !== undefined && this.#parts.ledger.cancelQueued(open)) return;
    const link = servingLink(live);
    if (link === null) return;
    // A run that the keeper has not received yet can't be cancelled. Once the keeper has received it, the sandbox is
    // reconciled again, and the run is cancelled then.
    if (open !== undefined && !open.isAcknowledged) {
      void open.begun.promise.then(() => this.reconcile(live));
      return;
    }
    const limit = { ms: numbers.keeperCallMs, what: "cancelling", signal: stopping };
    const leave = live.enter();
    try {
      await within(clock, limit, (signal) => link.cancelExec(runIdOf(record), signal));
    } finally {
      leave();
    }
    // Normally the end of the cancelled exec causes the sandbox to be reconciled again. If the process only waited for
    // its next run, there is no exec that could end, so the sandbox is reconciled from here.
    if (open === undefined) this.reconcile(live);
  }

  /**
   * Starts the next run in cases in which the keeper does not: after a restart of the sandbox, or because a caller
   * requested the run.
   */
  async #beginNext(entry: ProcessEntry): Promise<void> {
    const { clock } = this.#context;
    const { records, starts } = this.#parts;
    const { live, record } = entry;
    const link = servingLink(live);
    // While a mount path is open, a run could write to the sandbox's own disk at a path where a drive belongs. So no
    // run is started now. A later reconciliation of the sandbox starts it.
    if (link === null || live.hasOpenMountPath) return;
    const before = await records.lastExec(entry);
    const run = record.run + 1;
    const change = { run, generation: live.record.generation, restarts: 0, order: null };
    await records.apply(entry, change, async (next) => {
      const also = { changes: [updateOf(next)], events: [restarted(next, before, clock.now())] };
      await starts.startRun(live, next, link, also, true);
    });
    this.reconcile(live);
  }

  async #storeSeen(entry: ProcessEntry, seen: Seen): Promise<void> {
    await entry.turns.run(async () => {
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
      const written = seen.state === "unready" && wasWritten(record.seen, seen.run) && { said: true };
      const change = isPast ? {} : { seen: { ...seen, at, ...written } };
      await this.#parts.records.store(entry, change, isNews ? [event] : []);
    });
  }
}

/** Returns the link of a sandbox in the phase `running`, in which runs may be started; otherwise null. */
const servingLink = ({ record, link }: LiveSandbox): Link | null =>
  record.phase.name === "running" ? link : null;
