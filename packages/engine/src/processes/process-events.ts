import { isTerminal } from "@holdfast/contract";
import { outcomeOf } from "./exec.ts";
import type { KeeperExec, NewEvent } from "./ports.ts";
import { type Ending, howItEnded } from "./process.ts";
import { runIdOf } from "./process-runs.ts";
import type { ProcessRecord } from "./records.ts";

/** What the timeline says of processes. */

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

/** How a run ended, by its keeper; null where that knows nothing of it, or of its end. */
export const endingOf = (exec: KeeperExec | undefined): Ending | null =>
  exec === undefined || exec.state === "running" ? null : outcomeOf(exec);
