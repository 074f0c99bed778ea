import type { Exec, Process } from "@holdfast/contract";
import type { ExecLedger } from "../execs/exec-ledger.ts";
import { iso } from "../lib/format.ts";
import type { LiveSandbox } from "../live/live-sandbox.ts";
import type { ProcessEntry } from "../live/process-entry.ts";
import { recordedRow, runIdOf } from "../live/run-ids.ts";
import { judgeProcess, type ProcessFacts, readyOf } from "../model/process-machine.ts";
import type { EngineContext } from "../ports/context.ts";
import type { Change, NewEvent } from "../ports/index.ts";
import type { ExecRecord, ProcessRecord } from "../ports/records.ts";

/** Stores the records of named processes and converts them for callers. */
export class ProcessRecords {
  readonly #context: EngineContext;
  readonly #ledger: ExecLedger;

  constructor(context: EngineContext, ledger: ExecLedger) {
    this.#context = context;
    this.#ledger = ledger;
  }

  store(entry: ProcessEntry, change: Partial<ProcessRecord>, events: readonly NewEvent[]): Promise<void> {
    const { store } = this.#context;
    return this.apply(entry, change, (next) => store.commit({ changes: [updateOf(next)], events }));
  }

  /** Changes the record in memory after `write` has stored the change. */
  async apply(
    entry: ProcessEntry,
    change: Partial<ProcessRecord>,
    write: (next: ProcessRecord) => Promise<void>,
  ): Promise<void> {
    const next = { ...entry.record, ...change, revision: entry.record.revision + 1 };
    await write(next);
    entry.setRecord(next);
    entry.live.changed();
  }

  facts(entry: ProcessEntry): ProcessFacts {
    const { live, record, lastExec, report } = entry;
    const open = this.#ledger.open(runIdOf(record));
    const isCurrent = report !== null && report.link === live.link && report.run === record.run;
    const kept = isCurrent ? report.row : "unknown";
    return {
      record,
      last: open === undefined ? { is: "over", exec: lastExec } : { is: "open", stage: open.stage },
      kept,
      isRemembered: record.generation >= live.record.memorySince && hasMemory(live),
    };
  }

  judge(entry: ProcessEntry) {
    const { generation, phase } = entry.live.record;
    return judgeProcess(this.facts(entry), generation, phase.name === "failed");
  }

  async lastExec(entry: ProcessEntry): Promise<ExecRecord | null> {
    const id = runIdOf(entry.record);
    const open = this.#ledger.open(id);
    return open?.record ?? entry.lastExec ?? (await this.#context.store.exec(id).catch(() => null));
  }

  async view(entry: ProcessEntry): Promise<Process> {
    // The last run of a process that is over may have been removed when its retention ended.
    const found =
      entry.record.end === null
        ? await this.lastExec(entry)
        : await this.#context.store.exec(runIdOf(entry.record)).catch(() => null);
    const { live, record } = entry;
    const { status, cause } = this.judge(entry);
    const exec: Exec | null = found?.id === runIdOf(record) ? this.#ledger.view(found) : null;
    const row = recordedRow(entry);
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
      nextRunAt: status === "waiting" && row?.nextAt ? iso(row.nextAt) : null,
      execId: runIdOf(record),
      exec,
      restart,
      readyWhen,
      connectBy,
      keepAwake: command.keepAwake,
      suspended: live.isAsleep && record.end === null,
      createdAt: iso(record.createdAt),
      endedAt: record.end === null ? null : iso(record.end.at),
    };
  }
}

export const updateOf = (record: ProcessRecord): Change => ({
  kind: "process.update",
  record,
  expectedRevision: record.revision - 1,
});

/** Returns the fields with which a run's exec is created. */
export const execOf = (record: ProcessRecord, createdAt: number) => ({
  id: runIdOf(record),
  spec: record.spec.command,
  digest: record.digest,
  createdAt,
});

/** Whether the sandbox still has its memory, according to its record. */
const hasMemory = ({ record: { phase } }: LiveSandbox): boolean =>
  phase.name !== "failed" && !(phase.name === "queued" && phase.restart !== undefined);

/** Whether the sandbox is being deleted. Its processes then end with it. */
export const isEnding = ({ record: { phase } }: LiveSandbox): boolean =>
  phase.name === "deleting" || phase.name === "gone";
