import { type ExecId, isProcessId, type ProcessId, type SandboxId } from "@holdfast/contract";
import type { ProcessRecord } from "@holdfast/engine";
import type { Mirror } from "./mirror.ts";

/**
 * What a keeper calls an exec of its sandbox, and the other way round: in a fork, those that it began with have changed
 * names with what its keeper knows them by. Everywhere else both are the same.
 */
export function otherName({ sandboxes }: Mirror, sandboxId: SandboxId, id: ExecId): ExecId {
  const { execs, processes = [] } = sandboxes.get(sandboxId)?.forkedFrom ?? {};
  if (execs === undefined) return id;
  const run = runIn(id);
  for (const process of processes) {
    if (run?.process === process.id) return `${process.keeperId}-${run.run}` as ExecId;
    if (run?.process === process.keeperId) return `${process.id}-${run.run}` as ExecId;
  }
  for (const exec of execs) {
    if (exec.id === id) return exec.keeperId;
    if (exec.keeperId === id) return exec.id;
  }
  return id;
}

/** What an id says of a run: the process's own, a hyphen and its number; null where it is no run's. */
export function runIn(id: string): { process: ProcessId; run: number } | null {
  const [process = "", run = "", ...rest] = id.split("-");
  return isProcessId(process) && rest.length === 0 && run !== "" ? { process, run: Number(run) } : null;
}

/** The process on record that a command of a sandbox, by the name that its keeper has for it, is a run of. */
export function processOf(mirror: Mirror, sandboxId: SandboxId, inside: ExecId): ProcessRecord | undefined {
  const run = runIn(otherName(mirror, sandboxId, inside));
  const process = run === null ? undefined : mirror.processes.get(run.process);
  return process?.sandboxId === sandboxId ? process : undefined;
}
