import type { ExecId, SandboxId } from "@holdfast/contract";
import type { Mirror } from "./mirror.ts";

/**
 * What a keeper calls an exec of its sandbox, and the other way round: in a fork, those that it began with have changed
 * names with what its keeper knows them by. Everywhere else both are the same.
 */
export function otherName({ sandboxes }: Mirror, sandboxId: SandboxId, id: ExecId): ExecId {
  const execs = sandboxes.get(sandboxId)?.forkedFrom?.execs;
  if (execs === undefined) return id;
  for (const exec of execs) {
    if (exec.id === id) return exec.keeperId;
    if (exec.keeperId === id) return exec.id;
  }
  return id;
}
