import { type ExecId, isProcessId, type ProcessId, type SandboxId } from "@holdfast/contract";
import type { ProcessRecord } from "@holdfast/engine";
import type { Host } from "../world/host.ts";
import type { Journal } from "../world/journal.ts";
import type { Mirror } from "../world/mirror.ts";

/**
 * Translates an exec's id in the records to its id in the keeper, and the id in the keeper to the id in the records.
 * The two ids differ only if the exec was already running when its fork was created.
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

/**
 * Splits the exec id of a process's run into the process id and the run's number. Returns null if the exec is not a run
 * of a process.
 */
export function runIn(id: string): { process: ProcessId; run: number } | null {
  const [process = "", run = "", ...rest] = id.split("-");
  return isProcessId(process) && rest.length === 0 && run !== "" ? { process, run: Number(run) } : null;
}

/** Returns the recorded process to which a run belongs. `inside` is the run's id in the keeper. */
export function processOf(mirror: Mirror, sandboxId: SandboxId, inside: ExecId): ProcessRecord | undefined {
  const run = runIn(otherName(mirror, sandboxId, inside));
  const process = run === null ? undefined : mirror.processes.get(run.process);
  return process?.sandboxId === sandboxId ? process : undefined;
}

/**
 * Returns the journal of an exec: from the archived journals of ended sandboxes if it is there, otherwise from the
 * sandbox's directory.
 */
export function journalOf(
  { host, mirror }: { host: Host; mirror: Mirror },
  exec: { sandboxId: string; id: string },
): Journal | undefined {
  const sandboxId = exec.sandboxId as SandboxId;
  const id = otherName(mirror, sandboxId, exec.id as ExecId);
  return host.kept.get(sandboxId)?.get(id) ?? host.directories.get(sandboxId)?.journals.get(id);
}
