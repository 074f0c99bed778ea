import type { ExecId } from "@holdfast/contract";
import { runId, runOf } from "../model/process-machine.ts";
import type { SupervisedRun, SupervisePolicy } from "../ports/index.ts";
import type { ProcessRecord } from "../ports/records.ts";
import type { LiveSandbox } from "./live-sandbox.ts";
import type { ProcessEntry } from "./process-entry.ts";

/**
 * This file finds runs of named processes by exec id. The exec id of a run contains the process's id and the run's
 * number.
 */

export const runIdOf = ({ id, run }: ProcessRecord): ExecId => runId(id, run);
export const numberIn = (id: string): number => runOf(id)?.run ?? 0;

export const named = ({ processes }: LiveSandbox, name: string): ProcessEntry | undefined =>
  [...processes.values()].find(({ record }) => record.name === name);

export const entryOf = ({ processes }: LiveSandbox, id: string): ProcessEntry | undefined => {
  const run = runOf(id);
  return run === null ? undefined : processes.get(run.process);
};

/** Whether the exec is a run of one of the sandbox's processes that is not recorded yet. */
export const isUnrecordedRun = (live: LiveSandbox, id: string): boolean =>
  numberIn(id) > (entryOf(live, id)?.record.run ?? Number.POSITIVE_INFINITY);

/** Whether the exec is the last recorded run of one of the sandbox's processes, or a later run. */
export const isCurrentRun = (live: LiveSandbox, id: string): boolean =>
  numberIn(id) >= (entryOf(live, id)?.record.run ?? Number.POSITIVE_INFINITY);

/**
 * Whether the exec is the last run of a process that is not over. The next action for the process depends on how this
 * run ends and on what the keeper remembers of it.
 */
export const isNeededRun = (live: LiveSandbox, id: ExecId): boolean => {
  const record = entryOf(live, id)?.record;
  return record !== undefined && record.end === null && runIdOf(record) === id;
};

/** Returns how the keeper restarts the exec; null if the keeper does not restart it. */
export const restartPolicyOf = (live: LiveSandbox, id: string): SupervisePolicy | null =>
  entryOf(live, id)?.record.spec.restart ?? null;

/** Returns the row of the process's latest run in the keeper's list; null if the list has no run of the process. */
export const rowOf = (rows: readonly SupervisedRun[], { record }: ProcessEntry): SupervisedRun | null =>
  rows
    .filter(({ execId }) => runOf(execId)?.process === record.id)
    .reduce<SupervisedRun | null>(
      (last, row) => (numberIn(row.execId) > numberIn(last?.execId ?? "") ? row : last),
      null,
    );

/** Returns the row in the keeper's last report if it is the row of the last recorded run; otherwise null. */
export const recordedRow = ({ report, record }: ProcessEntry): SupervisedRun | null =>
  report?.row?.execId === runIdOf(record) ? report.row : null;
