import type { ExecId } from "@holdfast/contract";
import type { Cell } from "./cell.ts";
import type { KeptRun } from "./ports.ts";
import { runId, runOf } from "./process.ts";
import type { ProcessEntry } from "./process-entry.ts";
import type { ProcessRecord } from "./records.ts";

/** Which run is whose, by its id. */

export const runIdOf = ({ id, run }: ProcessRecord): ExecId => runId(id, run);
export const numberIn = (id: string): number => runOf(id)?.run ?? 0;

export const named = ({ processes }: Cell, name: string): ProcessEntry | undefined =>
  [...processes.values()].find(({ record }) => record.name === name);

export const entryOf = ({ processes }: Cell, id: string): ProcessEntry | undefined => {
  const run = runOf(id);
  return run === null ? undefined : processes.get(run.process);
};

/** Whether it is a run that is not on record. */
export const isNews = (cell: Cell, id: string): boolean =>
  numberIn(id) > (entryOf(cell, id)?.record.run ?? Number.POSITIVE_INFINITY);

export const rowOf = (rows: readonly KeptRun[], { record }: ProcessEntry): KeptRun | null =>
  rows
    .filter(({ execId }) => runOf(execId)?.process === record.id)
    .reduce<KeptRun | null>(
      (last, row) => (numberIn(row.execId) > numberIn(last?.execId ?? "") ? row : last),
      null,
    );

/** What the keeper last said of the run that is on record. */
export const rowWord = ({ heard, record }: ProcessEntry): KeptRun | null =>
  heard?.row?.execId === runIdOf(record) ? heard.row : null;
