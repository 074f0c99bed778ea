import { isTerminal } from "@holdfast/contract";
import { runIdOf } from "../live/run-ids.ts";
import { outcomeOf } from "../model/exec-outcome.ts";
import { type Ending, howItEnded } from "../model/process-machine.ts";
import type { KeeperExec, NewEvent } from "../ports/index.ts";
import type { ProcessRecord } from "../ports/records.ts";

/** Timeline events of processes. */

export function eventOf(
  record: ProcessRecord,
  type: NewEvent["type"],
  at: number,
  message: string,
  data: Record<string, unknown> = {},
): NewEvent {
  const { id: processId, name, sandboxId, run, generation } = record;
  const execId = runIdOf(record);
  return { at, type, sandboxId, execId, generation, message, data: { processId, name, run, ...data } };
}

export function restarted(record: ProcessRecord, before: Ending | null, at: number): NewEvent {
  const how = before === null || !isTerminal(before.status) ? "ended" : howItEnded(before);
  const message = `Process ${record.name} was started again: the run before it ${how}.`;
  const last = before && { status: before.status, exitCode: before.exitCode, signal: before.signal };
  return eventOf(record, "process.restarted", at, message, { restarts: record.restarts, last });
}

/** Converts the keeper's report of a run to how the run ended; null if the run is unknown or still running. */
export const endingOf = (exec: KeeperExec | undefined): Ending | null =>
  exec === undefined || exec.state === "running" ? null : outcomeOf(exec);
